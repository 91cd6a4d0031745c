"""Certificates for tests: another CA, and leaves of any age."""

import datetime
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509

from panal.core.clock import ManualClock, SystemClock
from panal.identity.certificates import CertificateAuthority, create_or_load_ca

DAY_S = 86_400.0


def aged_leaf(home: Path, name: str, names: Sequence[str], days_left: float) -> None:
    """Put a server certificate of the home's own CA in place that ends in so many days."""
    made_s = SystemClock().utc_seconds() - (90 - days_left) * DAY_S
    ca = create_or_load_ca(home, SystemClock())
    leaf, key = ca.issue(list(names), datetime.datetime.fromtimestamp(made_s, datetime.UTC))
    (home / "ca" / f"{name}-key.pem").write_text(key)
    (home / "ca" / f"{name}.pem").write_text(leaf)


def other_ca(folder: Path) -> CertificateAuthority:
    """A CA that no installation knows, such as a company's."""
    return create_or_load_ca(folder, ManualClock(SystemClock().utc_seconds()))


def given(
    folder: Path, ca: CertificateAuthority, names: Sequence[str], days_left: float = 90
) -> tuple[Path, Path]:
    """Files of a certificate and its key as a company gives them."""
    made_s = SystemClock().utc_seconds() - (90 - days_left) * DAY_S
    leaf, key = ca.issue(list(names), datetime.datetime.fromtimestamp(made_s, datetime.UTC))
    certificate_file, key_file = folder / "given.pem", folder / "given-key.pem"
    certificate_file.write_text(leaf + ca.pem)
    key_file.write_text(key)
    return certificate_file, key_file


def serial(pem: str) -> int:
    return x509.load_pem_x509_certificate(pem.encode()).serial_number
