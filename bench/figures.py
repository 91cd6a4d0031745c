"""From runs to figures and a table."""

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Run:
    """One measured window. ``cpu_s`` and ``faults`` by process; delays in seconds.

    ``others``: how many cores other programs of the machine used meanwhile.
    """

    requests: int
    events: int
    wall_s: float
    cpu_s: dict[str, float]
    faults: dict[str, int]
    others: float
    first_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    last_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bar:
    """What DESIGN section 6 asks for; None where it names no figure."""

    value: float | None = None

    def ratio(self, value: float) -> str:
        return "" if not self.value else f"{value / self.value:.2f}"


@dataclass(slots=True)
class Row:
    """One line of the table; values are those of the rounds."""

    group: str
    name: str
    unit: str
    bar: Bar = field(default_factory=Bar)
    values: list[float] = field(default_factory=list)
    nginx: list[float] = field(default_factory=list)
    beside: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        value = middle(self.values)
        nginx = middle(self.nginx) if self.nginx else None
        spread = f"{shown(min(self.values))}..{shown(max(self.values))}" if len(self.values) > 1 else ""
        beside = ", ".join(f"{name} {shown(middle(each))}" for name, each in self.beside.items())
        return [
            self.name,
            shown(value),
            spread,
            "" if self.bar.value is None else shown(self.bar.value),
            self.bar.ratio(value),
            "" if nginx is None else shown(nginx),
            "" if nginx is None or nginx <= 0 or "ms" in self.unit else f"{value / nginx:.1f}",
            "; ".join(filter(None, [beside, *dict.fromkeys(self.notes)])),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "row": self.name,
            "unit": self.unit,
            "bar": self.bar.value,
            "rounds": self.values,
            "nginx_rounds": self.nginx,
            "beside": dict(self.beside),
            "notes": self.notes,
        }


class Table:
    """Rows by group and name, made when they are first asked for."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    def row(self, group: str, name: str, unit: str, bar: float | None = None) -> Row:
        return self.rows.setdefault((group, name), Row(group, name, unit, Bar(bar)))

    def text(self) -> str:
        """The table as Markdown, a section for each group."""
        lines: list[str] = []
        groups = list(dict.fromkeys(group for group, _name in self.rows))
        for group in groups:
            rows = [row for row in self.rows.values() if row.group == group]
            head = [rows[0].unit, "panal", "rounds", "bar", "of bar", "nginx", "of nginx", "beside it"]
            cells = [head, *(row.cells() for row in rows)]
            used = [place for place in range(len(head)) if any(line[place] for line in cells[1:])]
            widths = {place: max(len(line[place]) for line in cells) for place in used}
            lines += ["", f"**{group}**", ""]
            for number, line in enumerate(cells):
                lines.append("| " + " | ".join(f"{line[place]:<{widths[place]}}" for place in used) + " |")
                if number == 0:
                    lines.append("|" + "|".join("-" * (widths[place] + 2) for place in used) + "|")
        return "\n".join(lines)


def middle(values: list[float]) -> float:
    return statistics.median(values)


def quantile(values: list[float], part: float) -> float:
    """The value below which ``part`` of them lie; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def shown(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"
