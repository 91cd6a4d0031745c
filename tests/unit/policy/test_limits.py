"""Limits: windows, sharing out, and many processes that spend their blocks in any order."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from panal.policy.blocks import (
    LEASE_S,
    Block,
    Blocks,
    Refusal,
    Reservation,
    due,
    exchange,
    reserve,
    settle,
    take,
)
from panal.policy.limits import Account, Limit, LimitKind, share_out
from tests.support.limit_store import MemoryLimits

NOON_S = 1_800_000_000
A, B = Account("a", 60), Account("b", 60)
TOKENS = Limit("key_1", LimitKind.TOKENS_PER_MINUTE, 100)
REQUESTS = Limit("key_1", LimitKind.REQUESTS_PER_DAY, 3)


def test_windows_are_cut_at_utc_minutes_and_days() -> None:
    assert LimitKind.TOKENS_PER_MINUTE.window_start_s(NOON_S + 59.9) == NOON_S
    assert LimitKind.REQUESTS_PER_DAY.window_start_s(86_400 * 3 + 5.0) == 86_400 * 3
    assert LimitKind.CONCURRENCY.window_start_s(NOON_S) == 0


def test_an_ask_is_granted_in_whole_or_not_at_all() -> None:
    shares = share_out({A: 100, B: 1}, [{A: 60, B: 2}, {A: 60, B: 1}, {A: 60}], {})
    assert shares.accepted == (False, True, False)
    assert (shares.granted, shares.left) == ({A: 60, B: 1}, {A: 40, B: 0})


def test_blocks_shrink_as_the_limit_comes_near() -> None:
    assert share_out({A: 8_000}, [{A: 10}], {A: 500}).granted == {A: 510}
    assert share_out({A: 800}, [{A: 10}], {A: 500}).granted == {A: 10 + 98}
    assert share_out({A: 15}, [{A: 10}], {A: 500}).granted == {A: 10}


def test_no_block_is_granted_to_who_was_refused() -> None:
    assert share_out({A: 5}, [{A: 10}], {A: 5}).granted == {A: 0}


@given(
    st.dictionaries(st.sampled_from([A, B]), st.integers(-50, 500), min_size=2, max_size=2),
    st.lists(st.dictionaries(st.sampled_from([A, B]), st.integers(1, 200), min_size=1), max_size=8),
    st.integers(0, 10_000),
)
def test_never_more_is_granted_than_is_left(left: Any, asks: Any, wish: int) -> None:
    shares = share_out(left, asks, dict.fromkeys(left, wish))
    for account, amount in left.items():
        assert shares.granted[account] <= max(0, amount)
        assert shares.left[account] == amount - shares.granted[account]


def held(limit: Limit, free: int) -> Block:
    block = Block(limit)
    block.account(0.0, NOON_S)
    block.free = free
    return block


def test_a_request_that_one_limit_refuses_takes_nothing_of_another() -> None:
    tokens, requests = held(TOKENS, 100), held(REQUESTS, 0)
    requests.left, requests.seen_s = 0, 0.0
    refused = reserve([tokens, requests], 60, 0.1, NOON_S)
    assert isinstance(refused, Refusal)
    assert (refused.block, refused.remaining, refused.never) == (requests, 0, False)
    assert (tokens.free, requests.free) == (100, 0)


def test_a_request_larger_than_the_limit_is_told_so() -> None:
    refused = reserve([held(TOKENS, 0)], 101, 0.0, NOON_S + 18.5)
    assert isinstance(refused, Refusal) and refused.never
    assert refused.reset_s == 42


def test_what_was_not_used_is_free_again_and_what_was_used_beyond_it_is_owed() -> None:
    tokens, requests = held(TOKENS, 70), held(REQUESTS, 2)
    first = reserve([tokens, requests], 60, 0.0, NOON_S)
    assert isinstance(first, Reservation)
    assert not settle(first, 20, 1.0, counts=True)
    assert (tokens.free, requests.free) == (50, 1)
    second = reserve([tokens, requests], 50, 1.0, NOON_S)
    assert isinstance(second, Reservation)
    assert settle(second, 61, 2.0, counts=True)
    assert tokens.free == -11
    assert due([tokens], 2.0, NOON_S) == [tokens]


def test_a_request_that_the_ledger_does_not_charge_did_not_count() -> None:
    tokens, requests = held(TOKENS, 100), held(REQUESTS, 1)
    reserved = reserve([tokens, requests], 60, 0.0, NOON_S)
    assert isinstance(reserved, Reservation)
    settle(reserved, 0, 1.0, counts=False)
    assert (tokens.free, requests.free) == (100, 1)


def test_nothing_of_a_window_that_ended_comes_into_the_next() -> None:
    tokens = held(TOKENS, 100)
    reserved = reserve([tokens], 60, 0.0, NOON_S)
    assert isinstance(reserved, Reservation)
    tokens.account(60.0, NOON_S + 60)
    settle(reserved, 10, 61.0, counts=True)
    assert (tokens.free, tokens.left) == (0, 100)


def test_another_amount_keeps_what_is_used() -> None:
    blocks = Blocks()
    blocks.set_limits([TOKENS])
    (block,) = blocks.of(["key_1", "prj_1"])
    block.account(0.0, NOON_S)
    block.free, block.left = 10, 30
    blocks.set_limits([Limit("key_1", LimitKind.TOKENS_PER_MINUTE, 50), REQUESTS])
    assert blocks.of(["key_1"])[0] is block
    assert (block.amount, block.left, block.remaining) == (50, -20, 0)
    blocks.set_limits([])
    assert blocks.of(["key_1"]) == ()


LIMITS = [
    Limit("key_1", LimitKind.TOKENS_PER_MINUTE, 1_000),
    Limit("key_1", LimitKind.REQUESTS_PER_MINUTE, 12),
    Limit("prj_1", LimitKind.TOKENS_PER_DAY, 2_500),
    Limit("tnt_1", LimitKind.CONCURRENCY, 5),
]
PROCESSES = 3


class Gateways(RuleBasedStateMachine):
    """Processes that share limits; any of them may be killed. Outputs are never longer than reserved."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryLimits(*LIMITS)
        self.time_s = 0.0
        self.names = [f"gw_{number}" for number in range(PROCESSES)]
        self.processes = [self._process() for _ in range(PROCESSES)]
        self.running: list[tuple[int, Reservation, int, float]] = []
        self.used: dict[Account, int] = {}
        """What was really used, in whole or by requests that run, by account."""
        self.lost = 0

    def _process(self) -> tuple[Block, ...]:
        blocks = Blocks()
        blocks.set_limits(LIMITS)
        return blocks.of(["key_1", "prj_1", "tnt_1"])

    @property
    def utc_s(self) -> float:
        return NOON_S + self.time_s

    def _exchange(self, number: int, waiting: Any, returning: Any) -> None:
        message, touched = exchange(waiting, returning, self.time_s, self.utc_s)
        now_us = round(self.utc_s * 1e6)
        shares = self.store.exchange(self.names[number], message, now_us, round(LEASE_S * 1e6))
        take(shares, touched, self.time_s)

    def _use(self, reservation: Reservation, amounts: dict[str, int]) -> None:
        for block, taken, start_utc_s in reservation.held:
            if block.kind.window_s:
                account = Account(block.name, start_utc_s)
                self.used[account] = self.used.get(account, 0) + amounts.get(block.name, taken)

    @rule(number=st.integers(0, PROCESSES - 1), tokens=st.integers(1, 400))
    def ask(self, number: int, tokens: int) -> None:
        blocks = self.processes[number]
        found = reserve(blocks, tokens, self.time_s, self.utc_s)
        if not isinstance(found, (Reservation, Refusal)):
            self._exchange(number, [(blocks, tokens)], [])
            found = reserve(blocks, tokens, self.time_s, self.utc_s)
        if isinstance(found, Reservation):
            self._use(found, {})
            self.running.append((number, found, tokens, self.time_s))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), part=st.floats(0.0, 1.0), counts=st.booleans())
    def end(self, data: Any, part: float, counts: bool) -> None:
        place = data.draw(st.integers(0, len(self.running) - 1))
        _number, reservation, tokens, _begun = self.running.pop(place)
        used = int(tokens * part) if counts else 0
        settle(reservation, used, self.time_s, counts=counts)
        self._use(
            reservation,
            {
                block.name: (used if block.kind.counts_tokens else int(counts)) - taken
                for block, taken, _start in reservation.held
            },
        )

    @rule(seconds=st.sampled_from([0.1, 0.5, 3.0, 20.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.time_s += seconds
        for number in range(PROCESSES):
            self.round(number)

    @rule(number=st.integers(0, PROCESSES - 1))
    def round(self, number: int) -> None:
        returning = due(self.processes[number], self.time_s, self.utc_s)
        if returning:
            self._exchange(number, [], returning)

    @rule(number=st.integers(0, PROCESSES - 1))
    def kill(self, number: int) -> None:
        """Its requests end with it; what it held of windows is lost until they end, places come back."""
        self.lost += 1
        self.names[number] = f"gw_{number}_{self.lost}"
        self.processes[number] = self._process()
        self.running = [each for each in self.running if each[0] != number]

    @invariant()
    def never_over_any_limit(self) -> None:
        amounts = {limit.name: limit.amount for limit in LIMITS}
        for account, used in self.used.items():
            assert 0 <= used <= self.store.used[account] <= amounts[account.limit]
        assert len(self.running) <= 5

    @invariant()
    def nothing_leaks(self) -> None:
        if self.lost:
            return
        for block_number, limit in enumerate(LIMITS):
            parts = [process[block_number] for process in self.processes]
            if limit.kind.window_s:
                start = limit.kind.window_start_s(self.utc_s)
                account = Account(limit.name, start)
                free = sum(part.free for part in parts if part.start_utc_s == start)
                assert self.store.used[account] == self.used.get(account, 0) + free
            else:
                assert sum(part.running for part in parts) == len(self.running)


TestGateways = Gateways.TestCase
TestGateways.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
