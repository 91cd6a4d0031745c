"""Clients that ask one thing after the other and look at every byte they get, in a thread of their own."""

import asyncio
import json
import random
import threading
import time

import httpx2

from tests.support.chaos.questions import Exchange, events_of, question

ANSWER_S_MAX = 90.0
"""A client that has heard nothing final for so long was left hanging."""
AGAIN_AFTER_S = 0.2


class Clients:
    """``count`` clients, each with one question at a time. ``exchanges`` is complete after ``stop``."""

    def __init__(self, url: str, key: str, count: int, seed: int) -> None:
        self._url = url
        self._key = key
        self._count = count
        self._seed = seed
        self._enough = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask_all()), daemon=True)
        self.exchanges: list[Exchange] = []
        self.unreachable = 0
        """Times that nobody listened: the gateway was being started again."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let everybody have their last answer."""
        self._enough.set()
        self._thread.join(ANSWER_S_MAX + 30.0)
        assert not self._thread.is_alive(), "a client still waits"

    async def _ask_all(self) -> None:
        limits = httpx2.Limits(max_connections=None)
        headers = {"authorization": f"Bearer {self._key}"}
        async with (
            httpx2.AsyncClient(base_url=self._url, headers=headers, limits=limits, timeout=None) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(self._count):
                group.create_task(self._ask(client, random.Random(self._seed * 1000 + number)))

    async def _ask(self, client: httpx2.AsyncClient, chance: random.Random) -> None:
        while not self._enough.is_set():
            exchange = Exchange(question(chance), time.monotonic())
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    await _exchange(client, exchange)
            except httpx2.ConnectError:
                self.unreachable += 1
                await asyncio.sleep(AGAIN_AFTER_S)
                continue
            except httpx2.TransportError:
                exchange.broken = True
            except TimeoutError:
                exchange.fault = f"nothing final within {ANSWER_S_MAX:g} s"
            exchange.ended_s = time.monotonic()
            self.exchanges.append(exchange)
            if exchange.status != 200:
                await asyncio.sleep(AGAIN_AFTER_S)


async def _exchange(client: httpx2.AsyncClient, exchange: Exchange) -> None:
    asked = exchange.question
    async with client.stream("POST", asked.path, json=asked.body) as answer:
        exchange.status = answer.status_code
        if answer.status_code != 200 or not asked.stream:
            exchange.take(json.loads(await answer.aread()))
            return
        rest, last_s = b"", None
        async for data in answer.aiter_raw():
            now_s = time.monotonic()
            whole, _, rest = (rest + data).rpartition(b"\n")
            for event in events_of(whole):
                if last_s is not None:
                    exchange.longest_gap_s = max(exchange.longest_gap_s, now_s - last_s)
                last_s = now_s
                if event is None:
                    exchange.done = True
                else:
                    exchange.take(event)
