"""The gateway's certificate for HTTPS: made by the own CA and renewed, or given and read again."""

import logging
import ssl
from pathlib import Path

from panal.cli.addresses import Addresses
from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.settings import GatewaySettings
from panal.identity.certificates import (
    CertificateAuthority,
    CertificateFiles,
    check_given,
    server_certificate,
)
from panal.protocol.joining import Authority
from panal.telemetry.logs import fields

log = logging.getLogger("panal.gateway")


class ServerTls:
    """``context`` serves the newest certificate to every new connection; running ones keep theirs."""

    def __init__(
        self,
        home: Path,
        settings: GatewaySettings,
        addresses: Addresses,
        ca: CertificateAuthority,
        clock: Clock,
    ) -> None:
        """Raises SettingsError for a given certificate that cannot serve these addresses."""
        self._home = home
        self._settings = settings
        self._names = addresses.names
        self._needed = addresses.advertised_host
        self._ca = ca
        self._clock = clock
        self._served = b""
        self._authority = Authority(ca.pem)
        self.context = _context()
        self._load()

    def authority(self) -> Authority:
        """What a joining machine is told: the CA, and what that vouches for where a certificate was given."""
        return self._authority

    def look(self) -> None:
        """Renew or read again if there is cause; what cannot be used is told and the old one stays."""
        try:
            if self._load():
                log.info("a new certificate is served", extra=fields(action="certificate_renewed"))
        except SettingsError as error:
            log.error("the old certificate stays: %s", error.message, extra=fields(action="certificate_kept"))

    def _load(self) -> bool:
        files, authority = self._files()
        try:
            content = files.certificate.read_bytes() + files.key.read_bytes()
            if content == self._served:
                return False
            _context().load_cert_chain(
                files.certificate, files.key
            )  # tried before the running one is touched
            self.context.load_cert_chain(files.certificate, files.key)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"The certificate {files.certificate} cannot be used with the key {files.key}: "
                f"{error.strerror or type(error).__name__}."
            ) from error
        self._served, self._authority = content, authority
        return True

    def _files(self) -> tuple[CertificateFiles, Authority]:
        certificate, key = self._settings.tls_certificate, self._settings.tls_key
        if not certificate and not key:
            files, _anew = server_certificate(self._home, "gateway", self._ca, self._names, self._clock)
            return files, Authority(self._ca.pem)
        if not certificate or not key:
            raise SettingsError("'gateway.tls_certificate' and 'gateway.tls_key' go together: set both.")
        given = CertificateFiles(Path(certificate), Path(key), Path(certificate))
        leaf_pem = check_given(given.certificate, self._needed, self._clock)
        return given, Authority(self._ca.pem, leaf_pem, self._ca.vouch(leaf_pem))


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
