"""The embedded certificate authority: one CA for an installation, and the certificates of its servers.

Everything lives in HOME/ca, readable by its owner only. The CA (P-256, ten years, path length 0)
signs server certificates of 90 days; agents and clients trust it through the pin in a join token.
"""

import base64
import datetime
import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.private_files import one_at_a_time, write_private, write_private_once
from panal.protocol.joining import vouched_text

PIN_HEX_DIGITS = 32
_CA_DAYS = 3650
_LEAF_DAYS = 90
_RENEW_DAYS_LEFT = 30
_CLOCKS_MAY_DIFFER = datetime.timedelta(minutes=10)


@dataclass(frozen=True)
class CertificateFiles:
    """PEM files, as servers want them: the certificate, its private key, the CA's certificate."""

    certificate: Path
    key: Path
    ca: Path


class CertificateAuthority:
    """A CA with its private key. Make one with ``create_or_load_ca``."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @property
    def pem(self) -> str:
        """The certificate, to be trusted by others."""
        return self._certificate.public_bytes(Encoding.PEM).decode()

    @property
    def pin(self) -> str:
        return pin(self.pem)

    def issue(self, names: Sequence[str], now: datetime.datetime) -> tuple[str, str]:
        """Certificate and key, as PEM, of a server known by these DNS names and IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        public_key = key.public_key()
        usage = _key_usage(digital_signature=True)
        certificate = (
            _builder(_name(f"panal server {names[0]}"[:64]), self._certificate.subject, now, _LEAF_DAYS)
            .public_key(public_key)
            .add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM).decode(), _key_pem(key).decode()

    def vouch(self, server_pem: str) -> str:
        """The signature by which joining machines know a server certificate that another CA made."""
        return base64.b64encode(self._key.sign(vouched_text(server_pem), ec.ECDSA(hashes.SHA256()))).decode()

    def issued(self, certificate: x509.Certificate) -> bool:
        """Whether this CA signed it."""
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def pin(ca_pem: str) -> str:
    """First 32 hex digits of SHA-256 over the CA's public key. Raises SettingsError for what is none."""
    try:
        public_key = x509.load_pem_x509_certificate(ca_pem.encode()).public_key()
    except ValueError:
        raise SettingsError("The CA's certificate cannot be read.") from None
    der = public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()[:PIN_HEX_DIGITS]


def certificate_end_utc_s(path: Path) -> float:
    """When the first certificate in a PEM file ends. Raises SettingsError naming the file."""
    try:
        return x509.load_pem_x509_certificate(_read(path)).not_valid_after_utc.timestamp()
    except ValueError:
        raise _damaged(path) from None


def create_or_load_ca(home: Path, clock: Clock) -> CertificateAuthority:
    """The CA in HOME/ca, made at first use. Raises SettingsError naming a file that cannot be used.

    Certificate and key are one file, so that two programs at once, or a crash, never mix two CAs.
    """
    path = home / "ca" / "ca.pem"
    if not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _self_signed(key, _now(clock))
        write_private_once(path, certificate.public_bytes(Encoding.PEM) + _key_pem(key))
    content = _read(path)
    try:
        certificate = x509.load_pem_x509_certificate(content)
        loaded = load_pem_private_key(content, password=None)
    except (ValueError, TypeError):
        raise _damaged(path) from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != certificate.public_key():
        raise _damaged(path)
    if certificate.not_valid_after_utc <= _now(clock):
        raise SettingsError(f"The certificate authority {path} has expired; move it away to make a new one.")
    return CertificateAuthority(certificate, loaded)


def check_given(path: Path, name: str, clock: Clock) -> str:
    """PEM of the first certificate in a file that somebody gave. Raises SettingsError saying what is wrong.

    ``name``: the DNS name or IP address by which others reach the server.
    """
    try:
        certificate = x509.load_pem_x509_certificate(_read(path))
    except ValueError:
        raise SettingsError(f"{path} holds no certificate in PEM form.") from None
    try:
        present = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        present = x509.SubjectAlternativeName([])
    if not _covers(present, name):
        raise SettingsError(
            f"The certificate {path} is not for '{name}', by which others reach this machine. "
            "Give 'gateway.advertise' a name of the certificate."
        )
    if not certificate.not_valid_before_utc <= _now(clock) < certificate.not_valid_after_utc:
        raise SettingsError(f"The certificate {path} has expired or is not valid yet; renew it.")
    return certificate.public_bytes(Encoding.PEM).decode()


def _covers(present: x509.SubjectAlternativeName, name: str) -> bool:
    """Whether a certificate is for the name, also by a ``*`` for the first label."""
    wanted = _general_name(name)
    if isinstance(wanted, x509.IPAddress):
        return wanted in present
    names = {each.lower() for each in present.get_values_for_type(x509.DNSName)}
    return bool({name.lower(), "*." + name.lower().partition(".")[2]} & names)


def server_certificate(
    home: Path, name: str, ca: CertificateAuthority, sans: Sequence[str], clock: Clock
) -> tuple[CertificateFiles, bool]:
    """The files of server ``name`` in HOME/ca, and whether they were just made anew.

    They are made when there are none, when a name or address of ``sans`` is missing, when they are of
    another CA, or when 30 days or less are left. Raises SettingsError naming a file that cannot be used.
    """
    folder = home / "ca"
    files = CertificateFiles(
        folder / f"{name}.pem", folder / f"{name}-key.pem", folder / "ca-certificate.pem"
    )
    _write_if_other(files.ca, ca.pem.encode())
    if files.certificate.exists() and files.key.exists() and _still_good(files, ca, sans, _now(clock)):
        return files, False
    try:
        with one_at_a_time(files.certificate):
            # Another process may have been quicker.
            if (
                files.certificate.exists()
                and files.key.exists()
                and _still_good(files, ca, sans, _now(clock))
            ):
                return files, False
            certificate, key = ca.issue(sans, _now(clock))
            write_private(files.key, key.encode())
            write_private(files.certificate, certificate.encode())
    except OSError as error:
        raise SettingsError(f"{files.certificate} cannot be written: {error.strerror}.") from error
    return files, True


def _still_good(
    files: CertificateFiles, ca: CertificateAuthority, sans: Sequence[str], now: datetime.datetime
) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(_read(files.certificate))
    except ValueError:
        raise _damaged(files.certificate) from None
    try:
        key = load_pem_private_key(_read(files.key), password=None)
    except (ValueError, TypeError):
        raise _damaged(files.key) from None
    if key.public_key() != certificate.public_key():
        return False  # a crash between the two files
    present = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    left = certificate.not_valid_after_utc - now
    return (
        left > datetime.timedelta(days=_RENEW_DAYS_LEFT)
        and all(_general_name(san) in present for san in sans)
        and ca.issued(certificate)
    )


def _self_signed(key: ec.EllipticCurvePrivateKey, now: datetime.datetime) -> x509.Certificate:
    public_key = key.public_key()
    name = _name("panal certificate authority")
    return (
        _builder(name, name, now, _CA_DAYS)
        .public_key(public_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_MAY_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(san: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(san))
    except ValueError:
        return x509.DNSName(san)


def _now(clock: Clock) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(clock.utc_seconds(), datetime.UTC)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _damaged(path: Path) -> SettingsError:
    return SettingsError(f"{path} is damaged; restore it from a backup or move it away.")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from error


def _write_if_other(path: Path, content: bytes) -> None:
    if not path.exists() or _read(path) != content:
        write_private(path, content)
