"""Guessing is slowed down."""

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import CapacityError
from panal.identity import attempt_limit
from panal.identity.attempt_limit import FAILURES_MAX, FailureLimit


@pytest.fixture
def clock():
    return ManualClock()


def _fail(limit: FailureLimit, address: str, times: int) -> None:
    for _ in range(times):
        limit.check(address)
        limit.note_failure(address)


def test_after_ten_failures_the_address_waits_until_the_oldest_is_a_minute_old(clock):
    limit = FailureLimit(clock)
    limit.note_failure("10.0.0.1")
    clock.advance(20)
    _fail(limit, "10.0.0.1", FAILURES_MAX - 1)
    with pytest.raises(CapacityError) as caught:
        limit.check("10.0.0.1")
    assert caught.value.retry_after_s == 40
    clock.advance(40)
    limit.check("10.0.0.1")


def test_other_addresses_are_not_slowed_down(clock):
    limit = FailureLimit(clock)
    _fail(limit, "10.0.0.1", FAILURES_MAX)
    limit.check("10.0.0.2")


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("unix", "unix", True),
    ],
)
def test_addresses_of_one_network_count_together(clock, first, second, same):
    limit = FailureLimit(clock)
    _fail(limit, first, FAILURES_MAX)
    if same:
        with pytest.raises(CapacityError):
            limit.check(second)
    else:
        limit.check(second)


def test_what_it_remembers_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(attempt_limit, "ADDRESSES_MAX", 5)
    limit = FailureLimit(clock)
    for number in range(100):
        limit.note_failure(f"10.0.0.{number}")
    assert len(limit._failures) == 5
