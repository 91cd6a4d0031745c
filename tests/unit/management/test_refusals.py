"""Refusals in the audit log: without secrets, in bounded rows, and nobody waits for them."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import CapacityError, NotAllowed, StoreError
from panal.core.ids import IdSource
from panal.identity.enrolment import Enrolment
from panal.identity.refusals import DIFFERENT_A_MINUTE_MAX, Refusal, RefusalCounts
from panal.identity.seams import Advertised
from panal.management.refusals import WAITING_MAX, RefusalAudit
from panal.store import Store
from panal.store.audit import AuditEvent
from tests.support.databases import KINDS, fresh_store
from tests.support.path import principal
from tests.support.rows import OWNER
from tests.unit.identity.test_enrolment import Issuer, Office, verify


class Bench:
    """An enrolment whose refusals are written by hand."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = ManualClock()
        ids = IdSource(self.clock, os.urandom)
        self.counts = RefusalCounts(self.clock)
        self.audit = RefusalAudit(self.counts, store, ids, self.clock)
        self.enrolment = Enrolment(
            store,
            Issuer(),
            verify,
            lambda: Advertised((), "CA"),
            ids=ids,
            clock=self.clock,
            notify=lambda: None,
            refused=self.counts.note,
        )
        self.office = Office(store, self.clock, Issuer(), self.enrolment, [])

    async def refused(self, request: Any, peer: str = "192.0.2.7") -> None:
        with pytest.raises((NotAllowed, CapacityError)):
            await self.enrolment.admit(request, peer)

    async def events(self) -> list[AuditEvent]:
        """Those of refusals, oldest first."""
        async with self.store.reading() as tx:
            assert (await tx.audit.verify()).whole
            found = await tx.audit.list("tnt_default", limit=1000)
        return [event for event in found if event.outcome == "refused"][::-1]


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Bench]:
    async with fresh_store(kind, folder) as store:
        yield Bench(store)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_flood_of_10_000_bad_joins_makes_bounded_rows(kind: str, tmp_path: Path) -> None:
    """From a thousand addresses, and again in the next minute."""
    async with opened(kind, tmp_path) as bench:
        request = bench.office.request("pnl1_aaaaaaaaaa_" + "b" * 32 + "_" + "0" * 32)
        for number in range(10_000):
            if number == 5_000:
                bench.clock.advance(60.0)
                request = bench.office.request(request.token)
            await bench.refused(request, f"10.0.{number % 1000 >> 8}.{number % 1000 & 255}")
        await bench.audit.close()
        events = await bench.events()
        assert sum(json.loads(event.details)["count"] for event in events) == 10_000
        assert 2 * DIFFERENT_A_MINUTE_MAX <= len(events) <= 4 * DIFFERENT_A_MINUTE_MAX + 8
        print(f"{kind}: {len(events)} rows for 10,000 bad joins")


async def test_each_kind_of_bad_join_says_what_it_was_and_no_secret(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as bench:
        office = bench.office
        used = await office.token()
        await bench.enrolment.admit(office.request(used), "192.0.2.1")
        await bench.refused(office.request(used, 2), "192.0.2.2")
        expired = await office.token(life_s=60)
        bench.clock.advance(61.0)
        await bench.refused(office.request(expired, 3), "192.0.2.3")
        await bench.refused(office.request(used, 4, signature="A" * 86 + "=="), "192.0.2.4")
        await bench.audit.close()
        events = await bench.events()
        told = {json.loads(event.details)["peer"]: event for event in events}
        async with bench.store.reading() as tx:
            tokens = {record.token_id for record in await tx.join_tokens.list("tnt_default")}
        for peer, words in (("192.0.2.2", "used up"), ("192.0.2.3", "expired")):
            assert words in json.loads(told[peer].details)["message"]
            assert told[peer].target in tokens
            assert told[peer].principal_id == OWNER
        assert "signature" in json.loads(told["192.0.2.4"].details)["message"]
        assert (told["192.0.2.4"].target, told["192.0.2.4"].principal_id) == ("", "")
        for token in (used, expired):
            for part in token.split("_")[1:3]:
                assert not any(part in repr(event) for event in events)


async def test_a_store_that_is_away_delays_rows_and_keeps_no_more_than_its_bound(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as bench:
        real, bench.audit._store = bench.audit._store, Away()  # type: ignore[assignment]
        for minute in range(40):
            for number in range(20):
                bench.counts.note(Refusal("key.use", "invalid_api_key", f"10.0.{minute}.{number}"))
            bench.clock.advance(60.0)
            await bench.audit.close()
        assert len(bench.audit._waiting) == WAITING_MAX
        assert bench.audit.dropped == 40 * 20 - WAITING_MAX
        bench.audit._store = real
        await bench.audit.write()
        assert len(await bench.events()) == WAITING_MAX


class Away:
    def transaction(self) -> Any:
        raise StoreError("away")


async def test_a_known_caller_is_named(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as bench:
        who = replace(principal())
        bench.counts.note(
            Refusal("api.call", "not_allowed", "192.0.2.1", "POST /api/v1/keys", who, "x sk-panal-secret y")
        )
        await bench.audit.close()
        (event,) = await bench.events()
        assert (event.principal_id, event.key_id, event.target) == (
            who.principal_id,
            who.key_id,
            "POST /api/v1/keys",
        )
        assert "sk-panal-secret" not in event.details
