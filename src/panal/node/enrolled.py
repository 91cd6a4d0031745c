"""What an agent keeps of its membership: HOME/node.json (0600), written once at joining and at renewal."""

from pathlib import Path

import msgspec

from panal.core.errors import SettingsError
from panal.core.private_files import write_private

FILE_NAME = "node.json"


class EnrolledNode(msgspec.Struct, kw_only=True):
    """``key_seed`` is the node's secret; ``url`` the gateway that admitted it, ``pin`` its CA's pin."""

    node: str
    name: str
    key_seed: str
    url: str
    pin: str
    ca_pem: str
    bus_urls: list[str]
    credential: str
    node_class: str
    site: str = ""
    country: str = ""
    data_class: str = "public"

    def __repr__(self) -> str:
        return f"EnrolledNode({self.node!r}, {self.name!r})"


def enrolled_path(home: Path) -> Path:
    return home / FILE_NAME


def load_enrolled(home: Path) -> EnrolledNode | None:
    """None where the machine has not joined. Raises SettingsError for a file that cannot be used."""
    path = enrolled_path(home)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return msgspec.json.decode(content, type=EnrolledNode)
    except msgspec.DecodeError:
        raise SettingsError(
            f"{path} is damaged. Restore it, or remove it and join again with a new token."
        ) from None


def save_enrolled(home: Path, enrolled: EnrolledNode) -> None:
    """Written whole or not at all. Raises SettingsError."""
    write_private(enrolled_path(home), msgspec.json.format(msgspec.json.encode(enrolled)))
