"""What commands print: tables for people, JSON for programs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def show_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def show_rows(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, empty: str
) -> None:
    """A table of the named fields, or all of every row as JSON."""
    rows = list(rows)
    if as_json:
        show_json(rows)
        return
    if not rows:
        print(empty)
        return
    lines = [[column.replace("_", " ") for column in columns]]
    lines += [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        # Nothing is cut off: people copy ids out of these tables.
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def show_fields(row: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing, a field a line."""
    if as_json:
        show_json(row)
        return
    width = max(len(name) for name in row)
    for name, value in row.items():
        print(f"{name.replace('_', ' '):<{width}}  {_cell(value)}")


def printable(text: str) -> str:
    """Without what a terminal would obey: nodes and clients have a say in what is shown."""
    return text if text.isprintable() else "".join(mark if mark.isprintable() else " " for mark in text)


def processes_line(processes: Sequence[Mapping[str, Any]]) -> str:
    """The gateway processes of a host in one line of ``panal status``."""
    words = [
        f"{each['number']} (pid {each['pid']}{', leads' if each['leads'] else ''})"
        for each in processes
        if each["lives"]
    ]
    gone = [str(each["number"]) for each in processes if not each["lives"]]
    return f"processes {', '.join(words)}{'; ended: ' + ', '.join(gone) if gone else ''}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list):
        return printable(", ".join(map(str, value))) or "-"
    if isinstance(value, dict):
        return printable(", ".join(f"{name} {each}" for name, each in value.items())) or "-"
    return printable(str(value))
