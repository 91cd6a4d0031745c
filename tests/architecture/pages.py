"""The documents as tests read them: their text, tables, fenced blocks and links."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "panal"

_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pages() -> list[Path]:
    """All documents, the README first."""
    return [
        ROOT / "README.md",
        *sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")} - {ROOT / "README.md"}),
    ]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, without headings."""
    found = []
    for line in text.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            found.append(cells)
    return found


def code(cell: str) -> str:
    """What stands in backquotes in a cell, or the cell itself."""
    match = _CODE.fullmatch(cell)
    return match[1] if match else cell


def codes(text: str) -> list[str]:
    """Everything that stands in backquotes on one line."""
    return [found for line in text.splitlines() for found in _CODE.findall(line)]


def part(text: str, heading: str) -> str:
    """The section under ``## heading``."""
    _before, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"there is no section '{heading}'"
    return rest.partition("\n## ")[0]


def fenced(text: str) -> list[str]:
    """The lines of all fenced blocks, backslashes at their ends joined."""
    lines: list[str] = []
    inside = False
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip().startswith("```"):
            inside = not inside
        elif inside:
            lines.append(line)
    return lines


def links(text: str) -> list[str]:
    return _LINK.findall(text)


def tracked_files() -> list[Path]:
    """What git would keep: tracked files and new ones that are not ignored."""
    found = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [path for name in found.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def source_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))
