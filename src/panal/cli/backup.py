"""``panal backup`` and ``panal restore``: everything that an installation cannot make again, in one file.

The file is a plain tar, readable by its owner only: ``manifest.json`` with sizes, SHA-256 and counts of
rows, the database as lines of JSON, and the small files of the home. It holds every secret of the
installation.
"""

import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from panal import __version__
from panal.cli.home import Home
from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.private_files import write_private
from panal.core.settings import Settings
from panal.store.dump import LINE_BYTES_MAX, DumpState, check_dump, dump, load

MANIFEST = "manifest.json"
STORE = "store.jsonl"
SETTINGS = "panal.toml"
NEEDED = ("secrets/pepper", "ca/ca.pem", "nats/authority.json")
OTHERS = ("admin.json", "agent/node.json", "agent/desk/pause.json")
_SPOOL = re.compile(r"spool/(?:\d{1,2}/)?\d{1,12}\.jsonl")
FILE_BYTES_MAX = 300 * 1024 * 1024
MANIFEST_BYTES_MAX = 16 * 1024 * 1024
BLOCK_BYTES = 1024 * 1024


class Entry(msgspec.Struct):
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, kw_only=True):
    version: int = 1
    panal: str
    created_utc_s: float
    revision: str
    rows: dict[str, int]
    files: dict[str, Entry]


async def backup(home: Home, settings: Settings, config: Path | None, target: Path, clock: Clock) -> Manifest:
    """Write ``target``, also beside a running installation. Raises SettingsError, StoreError."""
    missing = [name for name in NEEDED if not (home.path / name).exists()]
    if missing:
        raise SettingsError(f"There is no installation in {home.path} ({', '.join(missing)} is missing).")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            return await _backup(home, settings, config or home.settings_file, target, clock, Path(folder))
    except OSError as error:
        raise SettingsError(f"The backup {target} cannot be written: {error.strerror}.") from error


async def _backup(
    home: Home, settings: Settings, config: Path, target: Path, clock: Clock, folder: Path
) -> Manifest:
    # The spool comes first: what leaves it meanwhile is in the database then, and twice does no harm.
    waiting = sorted([*home.spool.glob("*.jsonl"), *home.spool.glob("[0-9]*/*.jsonl")])
    names = [*NEEDED, *OTHERS, *(path.relative_to(home.path).as_posix() for path in waiting)]
    sources = {name: home.path / name for name in names} | {SETTINGS: config}
    copies = {name: copied for name, path in sources.items() if (copied := _copied(path, folder, name))}
    with (folder / STORE).open("wb") as file:
        state = await dump(home.store_url(settings), file)
    copies[STORE] = folder / STORE
    manifest = Manifest(
        panal=__version__,
        created_utc_s=clock.utc_seconds(),
        revision=state.revision,
        rows=state.rows,
        files={name: Entry(path.stat().st_size, _digest(path)) for name, path in copies.items()},
    )
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    draft = folder / "draft.tar"
    with tarfile.open(draft, "w") as archive:
        for name, path in {MANIFEST: folder / MANIFEST, **copies}.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = path.stat().st_size, 0o600, int(manifest.created_utc_s)
            with path.open("rb") as content:
                archive.addfile(info, content)
    draft.chmod(0o600)
    with draft.open("rb") as written:
        os.fsync(written.fileno())
    draft.replace(target)
    return manifest


def _copied(path: Path, folder: Path, name: str) -> Path | None:
    copy = folder / name.replace("/", "+")
    try:
        shutil.copyfile(path, copy)
    except FileNotFoundError:  # a drained part of the spool, or not there at all
        return None
    return copy


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(file: Path) -> Manifest:
    """Read a backup through: names, sizes, digests, rows, audit chain. Raises SettingsError for any fault."""
    with _opened(file) as archive:
        return _checked(archive, file)


async def restore(file: Path, home: Home, settings_of: Callable[[], Settings]) -> Manifest:
    """Make a new home of a backup. Raises SettingsError, StoreError; then nothing is left in the home."""
    if home.path.exists() and (not home.path.is_dir() or any(home.path.iterdir())):
        raise SettingsError(f"{home.path} is not empty; a backup is restored into a new home only.")
    existed = home.path.exists()
    with _opened(file) as archive:
        manifest = _checked(archive, file)
        try:
            home.make()
            for name in manifest.files:
                if name != STORE:
                    write_private(home.path / name, _content(archive, name).read())
            await load(home.store_url(settings_of()), _lines(_content(archive, STORE)))
        except BaseException:
            for each in list(home.path.iterdir()) if home.path.is_dir() else []:
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            if not existed and home.path.is_dir():
                home.path.rmdir()
            raise
    return manifest


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        archive = tarfile.open(file, "r:")  # noqa: SIM115 - closed below; compressed ones are not read
    except OSError as error:
        raise SettingsError(f"The backup {file} cannot be read: {error.strerror}.") from error
    except tarfile.TarError:
        raise SettingsError(f"{file} is no backup of panal, or it is damaged.") from None
    with archive:
        yield archive


def _checked(archive: tarfile.TarFile, file: Path) -> Manifest:
    try:
        members = {member.name: member for member in archive}
        manifest = msgspec.json.decode(_content(archive, MANIFEST).read(MANIFEST_BYTES_MAX), type=Manifest)
    except (tarfile.TarError, msgspec.DecodeError, OSError, KeyError):
        raise SettingsError(f"{file} is no backup of panal, or it is damaged.") from None
    if manifest.version != 1:
        raise SettingsError(f"{file} was made by a newer panal ({manifest.panal}).")
    if members.keys() != manifest.files.keys() | {MANIFEST} or len(members) != len(archive.getmembers()):
        raise SettingsError(f"{file} does not hold the files that it says.")
    if not {STORE, *NEEDED} <= members.keys():
        raise SettingsError(f"{file} lacks a file that no installation can be without.")
    for name, entry in manifest.files.items():
        _check_member(archive, members[name], entry, file)
    state = check_dump(_lines(_content(archive, STORE)))
    _check_store(state, manifest, file)
    return manifest


def _check_member(archive: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry, file: Path) -> None:
    allowed = member.name in (STORE, SETTINGS, *NEEDED, *OTHERS) or _SPOOL.fullmatch(member.name)
    if not allowed or not member.isreg():
        raise SettingsError(f"{file} holds '{member.name[:100]}', which is no part of a backup.")
    if member.name != STORE and member.size > FILE_BYTES_MAX:
        raise SettingsError(f"{file}: {member.name} is too large.")
    content, digest = _content(archive, member.name), hashlib.sha256()
    while block := content.read(BLOCK_BYTES):
        digest.update(block)
    if (member.size, digest.hexdigest()) != (entry.size_bytes, entry.sha256):
        raise SettingsError(f"{file}: {member.name} is damaged (its SHA-256 is another one).")


def _check_store(state: DumpState, manifest: Manifest, file: Path) -> None:
    if (state.revision, state.rows) != (manifest.revision, manifest.rows):
        raise SettingsError(f"{file} does not hold the rows that it says.")
    if state.chain_fault:
        raise SettingsError(f"{file}: the audit chain is broken: {state.chain_fault}.")


def _content(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    if found is None:
        raise KeyError(name)
    return found


def _lines(content: IO[bytes]) -> Iterator[bytes]:
    while line := content.readline(LINE_BYTES_MAX):
        yield line
