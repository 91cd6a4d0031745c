"""The embedded CA and the certificates of servers."""

import datetime
import hashlib
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from panal.core.clock import ManualClock, SystemClock
from panal.core.errors import SettingsError
from panal.identity.certificates import CertificateFiles, create_or_load_ca, pin, server_certificate

NAMES = ["gateway.example", "127.0.0.1", "::1"]
DAY_S = 24 * 3600


def leaf(files: CertificateFiles) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def test_the_ca_is_made_once_and_kept_private(tmp_path: Path) -> None:
    clock = ManualClock()
    first, second = create_or_load_ca(tmp_path, clock), create_or_load_ca(tmp_path, clock)
    assert first.pem == second.pem
    assert stat.S_IMODE((tmp_path / "ca" / "ca.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700


def test_the_ca_signs_servers_and_no_other_ca_for_ten_years(tmp_path: Path) -> None:
    certificate = x509.load_pem_x509_certificate(create_or_load_ca(tmp_path, ManualClock()).pem.encode())
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert 3650 <= life.days <= 3651


def test_the_pin_is_the_digest_of_the_public_key(tmp_path: Path) -> None:
    ca = create_or_load_ca(tmp_path, ManualClock())
    key = x509.load_pem_x509_certificate(ca.pem.encode()).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert pin(ca.pem) == ca.pin == hashlib.sha256(der).hexdigest()[:32]
    with pytest.raises(SettingsError):
        pin("no certificate")


def test_many_at_once_agree_on_one_ca(tmp_path: Path) -> None:
    pins: list[str] = []
    barrier = threading.Barrier(6)

    def make() -> None:
        barrier.wait()
        pins.append(create_or_load_ca(tmp_path, ManualClock()).pin)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pins) == 6
    assert len(set(pins)) == 1


def test_a_server_certificate_names_all_its_addresses_for_ninety_days(tmp_path: Path) -> None:
    clock = ManualClock()
    files, fresh = server_certificate(tmp_path, "gateway", create_or_load_ca(tmp_path, clock), NAMES, clock)
    assert fresh
    names = leaf(files).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gateway.example"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    now = datetime.datetime.fromtimestamp(clock.utc_seconds(), datetime.UTC)
    assert leaf(files).not_valid_after_utc == now + datetime.timedelta(days=90)
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600


def test_it_is_kept_until_thirty_days_are_left(tmp_path: Path) -> None:
    clock = ManualClock()
    ca = create_or_load_ca(tmp_path, clock)
    files, _ = server_certificate(tmp_path, "gateway", ca, NAMES, clock)
    first = leaf(files).serial_number
    clock.advance(59 * DAY_S)
    assert server_certificate(tmp_path, "gateway", ca, NAMES, clock) == (files, False)
    assert leaf(files).serial_number == first
    clock.advance(2 * DAY_S)
    assert server_certificate(tmp_path, "gateway", ca, NAMES, clock) == (files, True)
    assert leaf(files).serial_number != first


def test_a_new_name_makes_a_new_certificate_and_fewer_names_do_not(tmp_path: Path) -> None:
    clock = ManualClock()
    ca = create_or_load_ca(tmp_path, clock)
    server_certificate(tmp_path, "gateway", ca, NAMES, clock)
    assert not server_certificate(tmp_path, "gateway", ca, NAMES[:1], clock)[1]
    assert server_certificate(tmp_path, "gateway", ca, [*NAMES, "other.example"], clock)[1]


def test_a_certificate_of_another_ca_is_replaced(tmp_path: Path) -> None:
    clock = ManualClock()
    server_certificate(tmp_path, "gateway", create_or_load_ca(tmp_path, clock), NAMES, clock)
    (tmp_path / "ca" / "ca.pem").unlink()
    ca = create_or_load_ca(tmp_path, clock)
    files, fresh = server_certificate(tmp_path, "gateway", ca, NAMES, clock)
    assert fresh
    assert files.ca.read_text() == ca.pem


def test_a_key_of_another_certificate_is_replaced(tmp_path: Path) -> None:
    clock = ManualClock()
    ca = create_or_load_ca(tmp_path, clock)
    files, _ = server_certificate(tmp_path, "gateway", ca, NAMES, clock)
    other, _ = server_certificate(tmp_path, "other", ca, NAMES, clock)
    files.key.write_bytes(other.key.read_bytes())
    assert server_certificate(tmp_path, "gateway", ca, NAMES, clock)[1]


@pytest.mark.parametrize("name", ["ca.pem", "gateway.pem", "gateway-key.pem"])
@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n"])
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, name: str, content: bytes) -> None:
    clock = ManualClock()
    server_certificate(tmp_path, "gateway", create_or_load_ca(tmp_path, clock), NAMES, clock)
    path = tmp_path / "ca" / name
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=name.replace(".", r"\.")):
        server_certificate(tmp_path, "gateway", create_or_load_ca(tmp_path, clock), NAMES, clock)
    assert path.read_bytes() == content


def test_an_expired_ca_stops_the_start(tmp_path: Path) -> None:
    clock = ManualClock()
    create_or_load_ca(tmp_path, clock)
    clock.advance(3651 * DAY_S)
    with pytest.raises(SettingsError, match="expired"):
        create_or_load_ca(tmp_path, clock)


def test_a_strict_client_accepts_the_server_by_name_and_address_only(tmp_path: Path) -> None:
    clock = SystemClock()
    ca = create_or_load_ca(tmp_path, clock)
    files, _ = server_certificate(tmp_path, "gateway", ca, NAMES, clock)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.load_verify_locations(cadata=ca.pem)
    assert _handshake(server, client, "gateway.example")
    assert _handshake(server, client, "127.0.0.1")
    assert not _handshake(server, client, "other.example")


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bool:
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(far, server_side=True).close()
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(near, server_hostname=name).close()
        return True
    except ssl.SSLCertVerificationError:
        return False
    finally:
        near.close()
        thread.join()
