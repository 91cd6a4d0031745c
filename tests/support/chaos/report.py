"""What a run of chaos came to, in figures that can be compared from run to run."""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.chaos.questions import Exchange, Verdict
from tests.support.desks import request_of

EXCUSE_S = 2.0
"""A connection may break so soon after its gateway was killed; later, nobody may know of it."""


@dataclass
class Ledger:
    """The store's rows: tokens shown by request, and what its attempts made beyond that."""

    shown: dict[str, tuple[int, int]]
    rows: int
    redone: int
    attempts: int

    @classmethod
    def read(cls, file: Path) -> "Ledger":
        connection = sqlite3.connect(file)
        try:
            rows = connection.execute(
                "SELECT request_id, prompt_tokens, completion_tokens, attempts FROM usage_records"
            ).fetchall()
            again = connection.execute(
                "SELECT sum(completion_tokens - useful_tokens) FROM contributions"
            ).fetchone()[0]
            prompts = connection.execute(
                "SELECT sum(prompt_tokens) FROM contributions WHERE attempt > 1"
            ).fetchone()[0]
        finally:
            connection.close()
        shown = {row[0]: (row[1], row[2]) for row in rows}
        return cls(shown, len(rows), (again or 0) + (prompts or 0), sum(row[3] for row in rows))


@dataclass
class Report:
    """``lost``: resumable requests that did not get their whole answer though their gateway lived."""

    requests: int
    verdicts: Counter[Verdict]
    lost: list[str]
    wrong: list[str]
    refused: Counter[str]
    told: Counter[str]
    repeated_characters: int
    duplicated: int
    missing: list[str]
    ledger_difference: int
    tokens_redone: int
    attempts: int
    gaps_s: list[float] = field(repr=False)

    def gap_s(self, share: float) -> float:
        """The longest gap inside an answer that this share of the answers stays below."""
        if not self.gaps_s:
            return 0.0
        return self.gaps_s[min(len(self.gaps_s) - 1, int(share * len(self.gaps_s)))]

    def lines(self) -> list[str]:
        figures = {
            "requests": self.requests,
            "attempts": self.attempts,
            **{str(verdict): self.verdicts[verdict] for verdict in Verdict},
            "refused, by code": dict(self.refused),
            "told, by what was asked for": dict(self.told),
            "lost": len(self.lost),
            "duplicated in the ledger": self.duplicated,
            "missing in the ledger": len(self.missing),
            "repeated characters": self.repeated_characters,
            "ledger difference, tokens": self.ledger_difference,
            "tokens redone": self.tokens_redone,
            "longest gap in an answer, p50": f"{self.gap_s(0.5):.2f} s",
            "longest gap in an answer, p99": f"{self.gap_s(0.99):.2f} s",
        }
        return [f"{name:32} {value}" for name, value in figures.items()]


def ways_of(folder: Path) -> dict[str, str]:
    """By request, the nodes it was tried on and what ended each try, as the gateway's log has it."""
    ways = {}
    for file in folder.rglob("*.log*"):
        for line in file.read_text(errors="replace").splitlines():
            if '"request_ended"' in line:
                entry = json.loads(line)
                ways[entry["request_id"]] = f"[{entry['nodes']}: {entry['causes']}]"
    return ways


def report(
    exchanges: Sequence[Exchange],
    ledger: Ledger,
    gateway_killed_s: Sequence[float],
    ways: Mapping[str, str],
) -> Report:
    """Count and compare."""
    verdicts = Counter(each.verdict() for each in exchanges)
    exact = [each for each in exchanges if each.verdict() is Verdict.EXACT]
    missing, difference = [], 0
    for each in exact:
        assert each.usage is not None
        booked = ledger.shown.get(request_of(each.response_id))
        if booked is None:
            missing.append(each.response_id)
        else:
            difference += abs(booked[0] - each.usage[0]) + abs(booked[1] - each.usage[1])
    ids = Counter(each.response_id for each in exchanges if each.response_id)
    return Report(
        requests=len(exchanges),
        verdicts=verdicts,
        lost=[_words(each, ways) for each in exchanges if _is_lost(each, gateway_killed_s)],
        wrong=[
            f"{_words(each, ways)}: {each.fault}" for each in exchanges if each.verdict() is Verdict.WRONG
        ],
        refused=Counter(each.error_code for each in exchanges if each.verdict() is Verdict.REFUSED),
        told=Counter(each.question.kind for each in exchanges if each.verdict() is Verdict.TOLD),
        repeated_characters=sum(each.repeated() for each in exchanges),
        duplicated=sum(count - 1 for count in ids.values()),
        missing=missing,
        ledger_difference=difference,
        tokens_redone=ledger.redone,
        attempts=ledger.attempts,
        gaps_s=sorted(each.longest_gap_s for each in exact if each.question.stream),
    )


def _is_lost(exchange: Exchange, gateway_killed_s: Sequence[float]) -> bool:
    verdict = exchange.verdict()
    if verdict is Verdict.BROKEN:
        return not any(
            exchange.asked_s - EXCUSE_S <= killed_s <= exchange.ended_s <= killed_s + EXCUSE_S
            for killed_s in gateway_killed_s
        )
    return verdict is Verdict.TOLD and exchange.question.resumable


def _words(exchange: Exchange, ways: Mapping[str, str]) -> str:
    asked = exchange.question
    kind = "stream" if asked.stream else "whole"
    error = f"{exchange.error_code} {exchange.error_text}".strip()
    way = ways.get(request_of(exchange.response_id), "")
    return f"{exchange.response_id or '-'} {asked.path} {kind} {exchange.status} {error} {way}".rstrip()
