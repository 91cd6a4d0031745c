"""Small requests to a fresh engine: proof that it works, its first speeds, and a calibration."""

import asyncio
import logging
from contextlib import aclosing

from panal.core.clock import Clock
from panal.core.errors import EngineFailed, EngineRefused
from panal.core.requests import Route
from panal.node.engines.engine import Engine, EngineCall
from panal.node.speeds import MeasuredSpeeds
from panal.node.usage import UsageTally
from panal.telemetry.logs import fields

PROMPT = "Name three things that one sees from a train."
TOKENS = 6
MEASURE_S_MAX = 60.0

CALIBRATE_TOKENS = 16
CALIBRATE_S_MAX = 15.0
CALIBRATE_READ_S = 1.0
"""The prompt is so long that reading it takes about this time, by the first request's speed."""
SENTENCES = (4, 100)
TOKENS_A_SENTENCE = 9


async def measure(engine: Engine, speeds: MeasuredSpeeds, clock: Clock) -> None:
    """Raises EngineFailed when the engine does not answer within MEASURE_S_MAX."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS, "temperature": 0}
    try:
        async with asyncio.timeout(MEASURE_S_MAX):
            await _measure(engine, EngineCall(Route.CHAT, body), len(PROMPT), speeds, clock)
    except TimeoutError as error:
        raise EngineFailed(f"the engine made no answer within {MEASURE_S_MAX:g} s") from error
    except EngineRefused as error:
        raise EngineFailed(f"the engine refuses a plain request: {error.message}") from error


async def calibrate(
    engine: Engine, speeds: MeasuredSpeeds, clock: Clock, prefill_tokens_per_s: float = 0.0
) -> None:
    """Measure reading and writing on an engine that is known to work; ``speeds`` should be empty.

    ``prefill_tokens_per_s`` is what the first request showed, and decides how long the prompt is.
    Ends after CALIBRATE_S_MAX at the latest, then with what was seen; never raises for the engine's sake.
    Cancelling it frees the engine at once.
    """
    least, most = SENTENCES
    count = round(prefill_tokens_per_s * CALIBRATE_READ_S / TOKENS_A_SENTENCE)
    prompt = " ".join(
        f"{each} times {each} is {each * each}." for each in range(2, max(least, min(count, most)))
    )
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": CALIBRATE_TOKENS,
        "temperature": 0,
    }
    try:
        async with asyncio.timeout(CALIBRATE_S_MAX):
            await _measure(engine, EngineCall(Route.CHAT, body), len(prompt), speeds, clock)
    except (TimeoutError, EngineRefused, EngineFailed) as error:
        logging.getLogger("panal.node.engine").warning(
            "the engine was not measured: %s", error, extra=fields(action="calibration_failed")
        )


async def _measure(
    engine: Engine, call: EngineCall, prompt_characters: int, speeds: MeasuredSpeeds, clock: Clock
) -> None:
    tally = UsageTally(None, prompt_characters)
    begun_s = clock.monotonic_seconds()
    first_s = last_s = 0.0
    async with aclosing(engine.generate(call)) as deltas:
        async for delta in deltas:
            tally.add(delta)
            if delta.tokens or delta.text:
                last_s = clock.monotonic_seconds()
                first_s = first_s or last_s
    speeds.add_prefill(tally.prompt_to_read, first_s - begun_s)
    speeds.add_decode(tally.made()[1] - 1, last_s - first_s)
