"""The pause that a client sees when a desk gives its machine back in the middle of an answer.

    python bench/hand_over.py [--rounds 5]

The whole path in memory with the echo engine, whose reading of prompts takes time: 2,000 tokens a second
but for what it has in its prefix cache, and 20 ms for each token made. Rows are interleaved over the
rounds: "at once" ends the old attempt with the word that the node leaves, "warm" lets it speak on for up
to 2 s until the next node has read the answer so far. Printed are medians over the rounds.
"""

import argparse
import asyncio
import statistics
import time
from collections import defaultdict

from tests.support.cut_path import Cut, CutPath, seen_of
from tests.support.path import ListSink

from panal.core.requests import Route
from panal.node.engines.echo_engine import EchoOptions

PREFILL_TOKENS_PER_S = 2000.0
TOKEN_S = 0.02
ANSWER_TOKENS = 160
CUT_AT_FRAME = 60
PROMPTS_TOKENS = (200, 1000, 3000, 8000)
GRACES_S = {"at once": 0.0, "warm": 2.0}


class TimedSink(ListSink):
    """Notes when bytes came."""

    def __init__(self) -> None:
        super().__init__()
        self.times_s: list[float] = []

    def write(self, data: bytes) -> None:
        super().write(data)
        self.times_s.append(time.monotonic())

    @property
    def longest_gap_s(self) -> float:
        return max(late - early for early, late in zip(self.times_s, self.times_s[1:], strict=False))


async def one(prompt_tokens: int, grace_s: float) -> tuple[float, int, bool]:
    """The longest gap, tokens read and made for nothing, and whether the text was right."""
    path = CutPath()
    options = EchoOptions(model="m", delay_token_s=TOKEN_S, prefill_tokens_per_s=PREFILL_TOKENS_PER_S)
    await path.start(2, options=options)
    text = "".join(chr(ord("a") + number % 26) for number in range(ANSWER_TOKENS))
    messages = [
        {"role": "system", "content": "x" * prompt_tokens},
        {"role": "user", "content": text},
    ]
    path.cuts = (Cut("leaving", CUT_AT_FRAME, grace_s),)
    sink = TimedSink()
    request = path.request(Route.CHAT, {"model": "m", "messages": messages, "stream": True})
    last = await path.dispatcher.answer(request, sink)
    (finished,) = path.books.finished
    redone = sum(log.tokens for log in finished.attempts if not log.useful)
    return sink.longest_gap_s, redone, seen_of(sink.data + last, stream=True).text == text


async def run(rounds: int) -> None:
    gaps: dict[tuple[int, str], list[float]] = defaultdict(list)
    redone: dict[tuple[int, str], list[int]] = defaultdict(list)
    for _ in range(rounds):
        for prompt_tokens in PROMPTS_TOKENS:
            for name, grace_s in GRACES_S.items():
                gap_s, again, right = await one(prompt_tokens, grace_s)
                assert right, "the text is not the uncut one"
                gaps[prompt_tokens, name].append(gap_s)
                redone[prompt_tokens, name].append(again)
    print("| prompt tokens | at once: longest gap | warm: longest gap | warm: tokens made for nothing |")
    print("|---|---|---|---|")
    for prompt_tokens in PROMPTS_TOKENS:
        at_once, warm = (statistics.median(gaps[prompt_tokens, name]) for name in GRACES_S)
        again = statistics.median(redone[prompt_tokens, "warm"])
        print(f"| {prompt_tokens} | {at_once * 1000:.0f} ms | {warm * 1000:.0f} ms | {again:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(run(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
