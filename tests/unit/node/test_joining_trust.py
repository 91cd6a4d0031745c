"""P36: what a joining machine believes, and that nothing secret goes to a server that it does not believe."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from panal.core.clock import ManualClock, SystemClock
from panal.core.errors import NotAllowed, SettingsError
from panal.identity.certificates import CertificateAuthority, check_given, create_or_load_ca
from panal.node import joining
from panal.protocol.joining import Authority, JoinToken
from tests.architecture.pages import SOURCE
from tests.support.certificates import given, other_ca

SECRET = "s" * 32
NAMES = ("127.0.0.1", "localhost", "*.example.com")


class Place:
    """A server with a certificate that records what it is told."""

    def __init__(self, authority: Authority) -> None:
        self.heard: list[tuple[str, str, bytes]] = []
        place = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                place.heard.append((self.path, str(self.headers), b""))
                self.answer(200, msgspec.json.encode(authority))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                place.heard.append((self.path, str(self.headers), body))
                self.answer(403, b'{"error": {"message": "the token is not known here"}}')

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.handler = Handler


@contextmanager
def served(authority: Authority, files: tuple[Path, Path]) -> Iterator[tuple[Place, str]]:
    place = Place(authority)
    server = HTTPServer(("127.0.0.1", 0), place.handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield place, f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10.0)
        server.server_close()


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return create_or_load_ca(tmp_path / "own", SystemClock())


@pytest.fixture
def company(tmp_path: Path) -> CertificateAuthority:
    return other_ca(tmp_path / "company")


def try_to_join(url: str, pin: str) -> None:
    token = JoinToken(id="a" * 10, secret=SECRET, pin=pin).text()
    joining.join(
        url, token, joining.Machine("secret-host", "secret-machine"), ManualClock(), lambda n: b"\1" * n
    )


def told(place: Place) -> str:
    return repr(place.heard)


def test_p36_nothing_secret_is_sent_to_a_server_with_another_ca(
    tmp_path: Path, ca: CertificateAuthority, company: CertificateAuthority
) -> None:
    with (
        served(Authority(company.pem), given(tmp_path, company, NAMES)) as (place, url),
        pytest.raises(SettingsError, match="not the one that this join token was made for"),
    ):
        try_to_join(url, ca.pin)
    assert [path for path, _, _ in place.heard] == ["/join/v1/authority"]
    for secret in (SECRET, "pnl1_", "secret-host", "authorization", "Authorization", "cookie"):
        assert secret not in told(place)


def test_p36_a_server_that_shows_our_ca_but_has_no_certificate_of_it_hears_no_token(
    tmp_path: Path, ca: CertificateAuthority, company: CertificateAuthority
) -> None:
    with (
        served(Authority(ca.pem), given(tmp_path, company, NAMES)) as (place, url),
        pytest.raises(SettingsError, match="not valid for this address or not of the expected CA"),
    ):
        try_to_join(url, ca.pin)
    assert SECRET not in told(place)


def test_p36_another_name_hears_no_token(tmp_path: Path, ca: CertificateAuthority) -> None:
    with (
        served(Authority(ca.pem), given(tmp_path, ca, ["gpu.example.com"])) as (place, url),
        pytest.raises(SettingsError, match="not valid for this address"),
    ):
        try_to_join(url, ca.pin)
    assert SECRET not in told(place)


def test_p36_a_given_certificate_is_believed_only_with_the_signature_of_our_ca(
    tmp_path: Path, ca: CertificateAuthority, company: CertificateAuthority
) -> None:
    files = given(tmp_path, company, NAMES)
    leaf = check_given(files[0], "127.0.0.1", SystemClock())
    good = Authority(ca.pem, leaf, ca.vouch(leaf))
    with served(good, files) as (place, url):
        with pytest.raises(NotAllowed, match="the token is not known here"):
            try_to_join(url, ca.pin)
        assert SECRET in told(place), "a server that is believed hears the token"
    for signature in ("", "!", company.vouch(leaf), ca.vouch(leaf + " ")):
        with served(Authority(ca.pem, leaf, signature), files) as (place, url):
            with pytest.raises(SettingsError, match="does not vouch for"):
                try_to_join(url, ca.pin)
            assert SECRET not in told(place)


def test_p36_of_a_vouched_certificate_name_and_dates_are_checked_too(
    tmp_path: Path, ca: CertificateAuthority, company: CertificateAuthority
) -> None:
    for names, days_left in ((["gpu.example.com"], 90), (NAMES, -1)):
        files = given(tmp_path, company, names, days_left)
        leaf = (
            files[0].read_text().partition("-----END CERTIFICATE-----\n")[0] + "-----END CERTIFICATE-----\n"
        )
        with served(Authority(ca.pem, leaf, ca.vouch(leaf)), files) as (place, url):
            with pytest.raises(SettingsError, match="not valid for this address"):
                try_to_join(url, ca.pin)
            assert SECRET not in told(place)


def test_p36_a_vouched_certificate_lets_no_other_one_of_its_ca_in(
    tmp_path: Path, ca: CertificateAuthority, company: CertificateAuthority
) -> None:
    leaf = check_given(given(tmp_path, company, NAMES)[0], "127.0.0.1", SystemClock())
    another = given(tmp_path, company, NAMES)
    with served(Authority(ca.pem, leaf, ca.vouch(leaf)), another) as (place, url):
        with pytest.raises(SettingsError, match="not of the expected CA"):
            try_to_join(url, ca.pin)
        assert SECRET not in told(place)


def test_given_certificates_are_checked_when_they_are_given(
    tmp_path: Path, company: CertificateAuthority
) -> None:
    certificate, _key = given(tmp_path, company, NAMES)
    for name in ("127.0.0.1", "LOCALHOST", "gpu.example.com"):
        assert check_given(certificate, name, SystemClock()).startswith("-----BEGIN CERTIFICATE-----")
    for name in ("127.0.0.2", "example.com", "a.gpu.example.com", "gpu.example.org"):
        with pytest.raises(SettingsError, match=f"not for '{name}'"):
            check_given(certificate, name, SystemClock())
    with pytest.raises(SettingsError, match="expired"):
        check_given(given(tmp_path, company, NAMES, -1)[0], "127.0.0.1", SystemClock())
    certificate.write_text("nothing")
    with pytest.raises(SettingsError, match="holds no certificate"):
        check_given(certificate, "127.0.0.1", SystemClock())


def test_p36_certificates_go_unchecked_in_one_place_only() -> None:
    loose = (
        "CERT_NONE",
        "CERT_OPTIONAL",
        "check_hostname = False",
        "_create_unverified_context",
        "verify=False",
    )
    found = {
        (path.relative_to(SOURCE).as_posix(), words)
        for path in SOURCE.rglob("*.py")
        for words in loose
        if words in path.read_text(encoding="utf-8")
    }
    assert found == {("node/joining.py", "CERT_NONE"), ("node/joining.py", "check_hostname = False")}
