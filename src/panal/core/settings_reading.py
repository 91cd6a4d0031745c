"""How one setting is read, checked and shown; the settings themselves are in settings.py."""

import difflib
import ipaddress
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints
from urllib.parse import urlsplit

from panal.core.errors import SettingsError

PREFIX = "PANAL_"
FILE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be like, beside its type. ``check`` returns a complaint or None."""

    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    check: Callable[[str], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody set. ``key`` is ``section.name``; ``from_text`` when it came as a string."""

    key: str
    value: Any
    source: str
    from_text: bool


class Masked:
    """Base of the sections: a repr that shows no secret."""

    __slots__ = ()

    @classmethod
    def hints(cls) -> dict[str, Any]:
        return get_type_hints(cls)

    @classmethod
    def items(cls) -> tuple[Field[Any], ...]:
        return fields(cls)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        parts = []
        for item in self.items():
            rule = item.metadata.get("rule", Rule())
            value = getattr(self, item.name)
            parts.append(f"{item.name}={'***' if rule.secret and value else repr(value)}")
        return f"{type(self).__name__}({', '.join(parts)})"


def loopback(host: str) -> str | None:
    """Plain HTTP never leaves the machine."""
    if host == "localhost":
        return None
    try:
        if ipaddress.ip_address(host).is_loopback:
            return None
    except ValueError:
        pass
    return "must be a loopback address; set 'gateway.listen' to serve the network over HTTPS"


def http_address(url: str) -> str | None:
    """An address over HTTP or HTTPS, without a user or password in it; empty means none."""
    if not url:
        return None
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "must be an address like http://127.0.0.1:4318"
    if not right or not url.isascii() or not url.isprintable() or " " in url:
        return "must be an address like http://127.0.0.1:4318"
    if parts.username is not None or parts.query or parts.fragment:
        return "must hold no user, password, query or fragment"
    return None


def shown(value: Any, rule: Rule) -> str:
    """A value as the table shows it."""
    if rule.secret and value:
        return "***"
    if value is None:
        return "(by node class)"
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def file_values(file: Path, sections: set[str]) -> tuple[list[Given], list[str]]:
    """What the file sets, and its faults."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            return [], [f"The settings file {file} is larger than {FILE_BYTES_MAX} bytes."]
        tree = tomllib.loads(raw.decode())
    except OSError as error:
        return [], [f"The settings file {file} cannot be read: {error.strerror}."]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return [], [f"The settings file {file} is not TOML: {error}."]
    found: list[Given] = []
    faults: list[str] = []
    for section, values in tree.items():
        if section not in sections:
            faults.append(_unknown_section(section, str(file), sections))
        elif not isinstance(values, dict):
            faults.append(f"'{section}' in {file} must be a table: write it as [{section}].")
        else:
            found += [Given(f"{section}.{name}", value, str(file), False) for name, value in values.items()]
    return found, faults


def environment_values(environment: Mapping[str, str], sections: set[str]) -> tuple[list[Given], list[str]]:
    """What the environment sets, and its faults. ``PANAL_HOME`` and the like are no settings."""
    found: list[Given] = []
    faults: list[str] = []
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        section, separator, name = variable[len(PREFIX) :].lower().partition("__")
        if separator and section in sections:
            found.append(Given(f"{section}.{name}", value, f"environment {variable}", True))
        elif separator:
            faults.append(_unknown_section(section, f"environment {variable}", sections))
        elif (head := section.split("_", 1)[0]) in sections and "_" in section:
            meant = f"{PREFIX}{head}__{section.split('_', 1)[1]}".upper()
            faults.append(f"The environment variable {variable} sets nothing: did you mean {meant}?")
    return found, faults


def unknown_key(given: Given, known: Sequence[str]) -> str:
    """The sentence for a key that does not exist, with the nearest that does."""
    near = difflib.get_close_matches(given.key, known, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"Unknown setting '{given.key}' in {given.source}.{hint}"


def _unknown_section(section: str, source: str, sections: set[str]) -> str:
    near = difflib.get_close_matches(section, sorted(sections), n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else f" Known: {', '.join(sorted(sections))}."
    return f"Unknown section '{section}' in {source}.{hint}"


def read_value(given: Given, hint: Any, rule: Rule) -> Any:
    """The checked value in the type ``hint``. Raises SettingsError."""
    kinds = get_args(hint) if type(None) in get_args(hint) else (hint,)
    kind = next(k for k in kinds if k is not type(None))
    value = _typed(given, kind, rule)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_range(given, value, rule)
    if rule.choices and value not in rule.choices:
        raise _fault(given, rule, f"must be one of {', '.join(rule.choices)}")
    complaint = rule.check(value) if rule.check is not None else None
    if complaint:
        raise _fault(given, rule, complaint)
    return value


def _typed(given: Given, kind: Any, rule: Rule) -> Any:
    value = given.value
    if given.from_text:
        value = _from_text(value, kind)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind in (int, float, bool, str):
        if type(value) is not kind:
            raise _fault(given, rule, f"must be {_wanted(given.key, kind)}")
        return value
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        raise _fault(given, rule, "must be a list of texts")
    return tuple(value)


def _from_text(text: str, kind: Any) -> Any:
    """The value, or the text itself where it is none: the check of the type then names the fault."""
    if kind is str:
        return text
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return [part.strip() for part in text.split(",") if part.strip()]


def _wanted(key: str, kind: Any) -> str:
    name = key.rsplit(".", 1)[1]
    parts = name.split("_")
    unit = " of seconds" if "s" in parts[1:] else " of bytes" if "bytes" in parts[1:] else ""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return words[kind] + unit


def _check_range(given: Given, value: float, rule: Rule) -> None:
    if not math.isfinite(value):
        raise _fault(given, rule, "must be a finite number")
    if rule.low is not None and value < rule.low:
        raise _fault(given, rule, f"must be at least {rule.low:g}")
    if rule.high is not None and value > rule.high:
        raise _fault(given, rule, f"must be at most {rule.high:.12g}")


def _fault(given: Given, rule: Rule, complaint: str) -> SettingsError:
    was = "" if rule.secret else f", not {given.value!r}"
    if len(was) > 200:
        was = ""
    return SettingsError(f"Setting '{given.key}' in {given.source} {complaint}{was}.", param=given.key)
