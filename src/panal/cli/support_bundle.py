"""``panal support-bundle``: what helps others to see what is wrong, without any secret, in one small file.

Whatever goes in passes ``Veil``: the secrets that stand in the home are taken out by their value, and all
that has the form of a secret by its form. Logs of engines are left out, since an engine may write prompts.
"""

import io
import json
import os
import platform
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from panal import __version__
from panal.cli.api_client import Api
from panal.cli.doctor.judgement import Finding
from panal.cli.doctor.machine import PROXIES
from panal.cli.home import Home
from panal.core.clock import Clock
from panal.core.errors import PanalError, SettingsError
from panal.core.private_files import write_private
from panal.core.proxies import Proxy
from panal.core.settings import Settings, describe
from panal.telemetry.redaction import redacted

PART_BYTES_MAX = 512 * 1024
SECRET_FILE_BYTES_MAX = 1024 * 1024
SECRET_LENGTH_LEAST = 6
"""What is shorter would be found everywhere by chance."""
ANSWER_S_MAX = 5.0
PROCESSES_MAX = 64
ASKED = (
    ("fleet.json", "/api/v1/fleet"),
    ("processes.json", "/api/v1/processes"),
    ("audit.json", "/api/v1/audit/verify"),
)
_HIDDEN = "***"
_FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\bS[ACNOUX][A-Z2-7]{56}\b"  # seeds of NKeys
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+"  # signed claims
    r"|(?<=://)[^/\s@\"']+@"  # user and password of a URL
    r"|(?i:(?<=password=)|(?<=pepper=)|(?<=secret=)|(?<=token=))[^\s\"'&]+",
    re.DOTALL,
)


class Veil:
    """Takes secrets out of text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {each for each in secrets if len(each) >= SECRET_LENGTH_LEAST}
        self._known = sorted(known, key=len, reverse=True)

    def over(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, _HIDDEN)
        return _FORMS.sub(_HIDDEN, redacted(text))


def bundle(
    home: Home,
    settings: Settings,
    environment: Mapping[str, str],
    findings: Iterable[Finding],
    api: Api | None,
    target: Path,
    clock: Clock,
) -> list[str]:
    """Write ``target`` (0600); the names of what is in it. ``api`` None: there is no gateway to ask."""
    veil = Veil(secrets_in(home, settings, environment))
    parts = {
        "versions.json": _json(_versions(clock)),
        "doctor.json": _json([asdict(each) for each in findings]),
        "settings.json": _json([asdict(row) for row in describe(settings)]),
        **_asked(api),
        **_logs(home),
    }
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, text in parts.items():
            data = veil.over(text).encode(errors="replace")[-PART_BYTES_MAX:]
            info = tarfile.TarInfo(f"panal-support/{name}")
            info.size, info.mode, info.mtime = len(data), 0o600, int(clock.utc_seconds())
            archive.addfile(info, io.BytesIO(data))
    write_private(target, content.getvalue())
    return list(parts)


def secrets_in(home: Home, settings: Settings, environment: Mapping[str, str]) -> set[str]:
    """Every secret that this machine keeps, as text in the forms in which it could stand somewhere."""
    found = {environment.get(name, "") for name in ("PANAL_API_KEY", "PANAL_ENGINE_KEY", "PANAL_HOST_CODE")}
    found |= _of_url(settings.gateway.store_url)
    for proxy in (settings.node.proxy, *(environment.get(name, "") for name in PROXIES)):
        found |= _of_url(proxy if "://" in proxy else f"http://{proxy}") | {_basic(proxy)}
    for header in settings.telemetry.traces_headers:
        value = header.partition("=")[2].strip()
        found |= {value, value.rpartition(" ")[2]}
    for path in (home.admin_file, home.path / "nats" / "authority.json", home.agent / "node.json"):
        found |= _strings(path)
    pepper = _read(home.path / "secrets" / "pepper")
    found |= {pepper.hex(), pepper.decode("latin-1")}
    for path in (home.path / "ca").glob("*.pem"):
        text = _read(path).decode("latin-1")
        for body in re.findall(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s(.*?)-----END", text, re.DOTALL):
            found |= {body, *body.splitlines()}
    return found


def _of_url(url: str) -> set[str]:
    """The URL and its password, as it is written and as it is meant."""
    try:
        password = urlsplit(url).password or ""
    except ValueError:
        password = ""
    return {url, password, unquote(password)}


def _basic(proxy: str) -> str:
    """What a proxy is sent for its user and password."""
    try:
        return Proxy.parse(proxy).authorization.removeprefix("Basic ")
    except ValueError:
        return ""


_SECRET_NAMES = ("key", "seed", "credential", "token", "secret")


def _strings(path: Path) -> set[str]:
    """The strings under names that say that they are secret, at any depth of a JSON file."""
    try:
        content = json.loads(_read(path) or b"{}")
    except ValueError:
        return set()
    found: set[str] = set()

    def walk(value: Any, secret: bool) -> None:
        if isinstance(value, dict):
            for name, each in value.items():
                walk(each, secret or any(word in str(name) for word in _SECRET_NAMES))
        elif isinstance(value, list):
            for each in value:
                walk(each, secret)
        elif isinstance(value, str) and secret:
            found.add(value)

    walk(content, secret=False)
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(SECRET_FILE_BYTES_MAX)
    except OSError:
        return b""


def _versions(clock: Clock) -> dict[str, Any]:
    return {
        "panal": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "utc_s": clock.utc_seconds(),
        "libraries": {each.name: each.version for each in metadata.distributions()},
    }


def _asked(api: Api | None) -> dict[str, str]:
    """What the gateway says, or why it does not."""
    if api is None:
        return {"gateway.txt": "There is no gateway to ask.\n"}
    answers: dict[str, str] = {}
    for name, path in ASKED:
        try:
            answers[name] = _json(api.get(path))
        except PanalError as error:
            answers[name] = _json({"problem": error.message})
    answers["metrics.txt"] = _metrics(api)
    return answers


def _metrics(api: Api) -> str:
    try:
        connection = api.connect(ANSWER_S_MAX)
        try:
            connection.request("GET", "/metrics", headers=api.headers())
            return connection.getresponse().read(4 * PART_BYTES_MAX).decode("utf-8", "replace")
        finally:
            connection.close()
    except (OSError, SettingsError) as error:
        return f"# not there: {error}\n"


def _logs(home: Home) -> dict[str, str]:
    """The ends of our own logs and of nats-server's."""
    found = {}
    for path in (
        *(home.gateway_log(number) for number in range(1, PROCESSES_MAX + 1)),
        home.agent / "logs" / "agent.log",
        home.path / "nats" / "server.log",
    ):
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - PART_BYTES_MAX))
                data = file.read(PART_BYTES_MAX)
        except OSError:
            continue
        # The first line may lack its beginning, by which a secret in it would be known.
        whole = data if len(data) < PART_BYTES_MAX else data.partition(b"\n")[2]
        found[f"logs/{path.name}"] = whole.decode("utf-8", "replace")
    return found


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
