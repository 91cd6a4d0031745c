"""Which gateway a command talks to, and with which key."""

import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from panal.cli.api_client import Api
from panal.cli.home import Home, home_of
from panal.core.errors import SettingsError
from panal.core.proxies import STRAIGHT, Proxies, is_loopback, proxies_of


def api_of(home: Path | None, url: str) -> Api:
    """PANAL_API_KEY with --url or PANAL_URL; else the admin access in the home. Raises SettingsError."""
    environment = os.environ
    key = environment.get("PANAL_API_KEY", "")
    address = url or environment.get("PANAL_URL", "")
    ca_file = environment.get("PANAL_CA_FILE", "")
    ca_pem = _certificate(Path(ca_file)) if ca_file else ""
    found = home_of(home, environment)
    if address and key:
        return Api(address.rstrip("/"), key, ca_pem, _proxies(found, address))
    access = found.admin_access()
    if access is None:
        raise SettingsError(
            f"There is no installation in {found.path}. Start one with 'panal up', name another with --home, "
            "or set PANAL_URL and PANAL_API_KEY."
        )
    where = address.rstrip("/") or access.url
    return Api(where, key or access.key, ca_pem, _proxies(found, where))


def _proxies(home: Home, url: str) -> Proxies:
    """Settings are read only for an address that a proxy may lead to: a fault in them must not keep somebody
    from the gateway on this machine."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    if not host or is_loopback(host):
        return STRAIGHT
    node = home.settings(None, os.environ).node
    return proxies_of(node.proxy, node.no_proxy, os.environ)


def _certificate(file: Path) -> str:
    try:
        pem = file.read_text(encoding="ascii")
        ssl.create_default_context(cadata=pem)
    except (OSError, ValueError) as error:  # a wrong certificate is an OSError too
        raise SettingsError(f"PANAL_CA_FILE {file} cannot be used as a certificate: {error}.") from error
    return pem
