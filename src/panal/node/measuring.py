"""One small request to a fresh engine: proof that it works, and its first speeds."""

import asyncio
from contextlib import aclosing

from panal.core.clock import Clock
from panal.core.errors import EngineFailed, EngineRefused
from panal.core.requests import Route
from panal.node.engines.engine import Engine, EngineCall
from panal.node.speeds import MeasuredSpeeds
from panal.node.usage import UsageTally

PROMPT = "Name three things that one sees from a train."
TOKENS = 6
MEASURE_S_MAX = 60.0


async def measure(engine: Engine, speeds: MeasuredSpeeds, clock: Clock) -> None:
    """Raises EngineFailed when the engine does not answer within MEASURE_S_MAX."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS, "temperature": 0}
    try:
        async with asyncio.timeout(MEASURE_S_MAX):
            await _measure(engine, EngineCall(Route.CHAT, body), speeds, clock)
    except TimeoutError as error:
        raise EngineFailed(f"the engine made no answer within {MEASURE_S_MAX:g} s") from error
    except EngineRefused as error:
        raise EngineFailed(f"the engine refuses a plain request: {error.message}") from error


async def _measure(engine: Engine, call: EngineCall, speeds: MeasuredSpeeds, clock: Clock) -> None:
    tally = UsageTally(None, len(PROMPT))
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
