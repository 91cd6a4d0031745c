"""What a second gateway host needs of the first, in one sealed file: pepper, CA, the bus's keys, admin key.

The file is JSON with the secrets under AES-256-GCM. Its key is made of a code of 160 random bits, which is
shown once and travels another way than the file: whoever has only one of the two has nothing.
"""

import base64
from collections.abc import Callable
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from panal import __version__
from panal.cli.addresses import addresses_of
from panal.cli.home import PEPPER_BYTES, Home
from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.private_files import write_private, write_private_once
from panal.core.settings import Settings

PEPPER = "secrets/pepper"
AUTHORITY = "nats/authority.json"
NEEDED = (PEPPER, "ca/ca.pem", AUTHORITY)
OPTIONAL = ("admin.json",)
CODE_BYTES = 20
NONCE_BYTES = 12
FILE_BYTES_MAX = 16 * 1024 * 1024
_PURPOSE = b"panal host secrets 1"


class Sealed(msgspec.Struct, kw_only=True):
    """The file. ``nonce`` and ``secrets`` are base64."""

    panal_host: int = 1
    panal: str
    created_utc_s: float
    nonce: bytes
    secrets: bytes


class Secrets(msgspec.Struct, kw_only=True):
    """What is sealed. ``bus_urls``: by which another host reaches the bus."""

    files: dict[str, bytes]
    bus_urls: tuple[str, ...]


def export(
    home: Home, settings: Settings, target: Path, clock: Clock, entropy: Callable[[int], bytes]
) -> str:
    """Write ``target`` and return the code that opens it. Raises SettingsError."""
    missing = [name for name in NEEDED if not (home.path / name).exists()]
    if missing:
        raise SettingsError(f"There is no installation in {home.path} ({', '.join(missing)} is missing).")
    if home.store_url(settings).startswith("sqlite"):
        raise SettingsError(
            "The store is an SQLite file, which one host only can have. Move it to PostgreSQL first: "
            "'panal backup', then 'panal restore' with 'gateway.store_url' set."
        )
    if target.exists():
        raise SettingsError(f"{target} exists; give the name of a new file.")
    files = {name: (home.path / name).read_bytes() for name in NEEDED}
    files |= {name: (home.path / name).read_bytes() for name in OPTIONAL if (home.path / name).exists()}
    secrets = Secrets(files=files, bus_urls=addresses_of(settings).advertised_bus_urls)
    raw, nonce = entropy(CODE_BYTES), entropy(NONCE_BYTES)
    content = AESGCM(_key(raw)).encrypt(nonce, msgspec.json.encode(secrets), _PURPOSE)
    sealed = Sealed(panal=__version__, created_utc_s=clock.utc_seconds(), nonce=nonce, secrets=content)
    write_private(target, msgspec.json.encode(sealed))
    return _written(raw)


def import_(file: Path, code: str, home: Home) -> Secrets:
    """Put the secrets into a home that has none or the same; else raises SettingsError, writing nothing."""
    secrets = _opened(file, code)
    for name, content in secrets.files.items():
        path = home.path / name
        if (
            path.exists()
            and name not in OPTIONAL
            and _identity(name, path.read_bytes()) != _identity(name, content)
        ):
            raise SettingsError(
                f"{home.path} holds another installation's secrets ({name}). Give another --home, or move "
                "them away."
            )
    home.make()
    for name, content in secrets.files.items():
        write_private_once(home.path / name, content)
    return secrets


def _identity(name: str, content: bytes) -> object:
    """What must be the same. The bus's keys stay, while revocations are added beside them."""
    if name != AUTHORITY:
        return content
    try:
        return msgspec.json.decode(content)["seeds"]
    except (ValueError, KeyError, TypeError, msgspec.DecodeError):
        return content


def _opened(file: Path, code: str) -> Secrets:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise SettingsError(f"{file} is not what 'panal host export' writes.")
        sealed = msgspec.json.decode(file.read_bytes(), type=Sealed)
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, msgspec.MsgspecError):
        raise SettingsError(f"{file} is not what 'panal host export' writes.") from None
    if sealed.panal_host != 1:
        raise SettingsError(f"{file} was made by a newer panal ({sealed.panal}).")
    try:
        content = AESGCM(_key(_read(code))).decrypt(sealed.nonce, sealed.secrets, _PURPOSE)
        secrets = msgspec.json.decode(content, type=Secrets)
    except (InvalidTag, ValueError, msgspec.MsgspecError):
        raise SettingsError(f"The code does not open {file}, or the file is damaged.") from None
    allowed = {*NEEDED, *OPTIONAL}
    if not set(NEEDED) <= secrets.files.keys() <= allowed or len(secrets.files[PEPPER]) != PEPPER_BYTES:
        raise SettingsError(f"{file} does not hold what a host needs.")
    return secrets


def _key(raw: bytes) -> bytes:
    return HKDF(hashes.SHA256(), length=32, salt=None, info=_PURPOSE).derive(raw)


def _written(raw: bytes) -> str:
    """As people copy it: eight groups of four."""
    text = base64.b32encode(raw).decode()
    return "-".join(text[at : at + 4] for at in range(0, len(text), 4))


def _read(code: str) -> bytes:
    """Raises ValueError."""
    raw = base64.b32decode(code.replace("-", "").replace(" ", "").strip().upper())
    if len(raw) != CODE_BYTES:
        raise ValueError("not a code")
    return raw
