"""Versions as packages write them, compared number by number; enough for what our own package asks for."""

import re

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)(;.*)?")
_CLAUSE = re.compile(r"(>=|<=|==|<|>)\s*([0-9.]+)")


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``2.15.1rc2`` is (2, 15, 1)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, match[1].split("."))) if match else ()


def requirement(text: str) -> tuple[str, str, bool]:
    """Name, clauses, and whether it holds on every system, of ``name[extra]>=1,<2; marker``."""
    match = _REQUIREMENT.match(text)
    if match is None:
        return text, "", False
    return match[1], match[2].strip(), match[3] is None


def fits(found: str, wanted: str) -> bool:
    """Whether a version meets all clauses. What cannot be read fits."""
    version = numbers(found)
    return all(_meets(version, sign, numbers(bound)) for sign, bound in _CLAUSE.findall(wanted))


def _meets(version: tuple[int, ...], sign: str, bound: tuple[int, ...]) -> bool:
    length = max(len(version), len(bound))
    left = version + (0,) * (length - len(version))
    right = bound + (0,) * (length - len(bound))
    return {
        ">=": left >= right,
        "<=": left <= right,
        "==": left == right,
        "<": left < right,
        ">": left > right,
    }[sign]
