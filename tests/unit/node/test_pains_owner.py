"""P29: an idle detection that does not see its user (pains of others: BOINC and its like)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from panal.core.clock import ManualClock
from panal.core.nodes import NodeClass
from panal.core.settings import OwnerSettings
from panal.node.desk import Desk
from panal.node.hardware.idle import Idle, Unknown
from panal.node.hardware.memory import EngineMemory
from panal.node.hardware.owner_watch import OwnerWatch
from panal.policy.owner_values import policy_for
from panal.policy.signs import People, Signs
from tests.unit.node.test_idle_watch import Work

Says = Callable[[float], Idle | Unknown]


class Source:
    """A fake idle source: right for a while, then what ``says`` makes of the seconds since then."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.says: Says | None = None
        self.since_s = 0.0

    def read(self) -> Idle | Unknown:
        if self.says is not None:
            return self.says(self.clock.monotonic_seconds() - self.since_s)
        return Idle(7200.0 + self.clock.monotonic_seconds())

    def close(self) -> None:
        """Nothing is held."""


class Around:
    """Senses of which only the signs matter here."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.other_session = False

    def signs(self) -> Signs:
        return Signs(self.clock.monotonic_seconds(), people=People.HERE, busy=self.other_session)

    def gpu_use(self) -> None:
        return None

    def owner_is_away(self, away: bool) -> None: ...

    def machine_is_back(self, back: bool) -> None: ...

    def words(self) -> dict[str, str]:
        return {"sessions (logind)": "another user at the machine" if self.other_session else "somebody"}


def broken(_s: float) -> Idle | Unknown:
    raise OSError("no display")


CASES: list[tuple[str, Says, str]] = [
    ("an error", broken, "idle state unknown"),
    ("no answer", lambda _s: Unknown("Wayland"), "idle state unknown"),
    ("a constant 0", lambda _s: Idle(0.0), "idle state unknown"),
    ("a constant hour", lambda _s: Idle(3600.0), "idle state unknown"),
    ("jumps backwards", lambda s: Idle(9000.0 - 100.0 * s), "idle state unknown"),
]


@pytest.mark.parametrize(("says", "reason"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_p29_a_source_that_fails_or_is_implausible_is_an_owner_at_work_and_says_so(
    tmp_path: Path, says: Says, reason: str
) -> None:
    clock = ManualClock()
    source, desk, work = Source(clock), Desk(tmp_path, clock), Work()
    policy = policy_for(NodeClass.DESKTOP, OwnerSettings())
    watch = OwnerWatch(policy, source, desk, EngineMemory(), clock)
    watch.attach(work)
    work.watch = watch
    watch.look()
    assert watch.may_serve() is None
    source.says, source.since_s = says, clock.monotonic_seconds()
    clock.advance(0.25)
    watch.look()
    assert watch.may_serve() is not None, "from the first wrong word on nothing is served"
    for _ in range(4 * 70):
        clock.advance(0.25)
        watch.look()
        assert watch.may_serve() is not None
    assert watch.reason == reason
    status = desk.status().status
    assert status is not None
    assert status.reason == reason
    assert status.problem, "the owner is told why"
    watch.change_policy(policy_for(NodeClass.DEDICATED, OwnerSettings()))
    clock.advance(0.25)
    watch.look()
    assert watch.may_serve() is None, "an operator can say that the machine has no owner"


def test_p29_an_hour_of_idle_although_another_session_is_in_use_is_not_believed(tmp_path: Path) -> None:
    clock = ManualClock()
    source, work, around = Source(clock), Work(), Around(clock)
    policy = policy_for(NodeClass.DESKTOP, OwnerSettings())
    watch = OwnerWatch(
        policy, source, Desk(tmp_path, clock), EngineMemory(), clock, senses=around  # type: ignore[arg-type]
    )  # fmt: skip
    watch.attach(work)
    work.watch = watch
    watch.look()
    assert watch.may_serve() is None
    around.other_session = True
    clock.advance(0.25)
    watch.look()
    assert watch.may_serve() == "in use by its owner"
    around.other_session = False
    for _ in range(4 * 890):
        clock.advance(0.25)
        watch.look()
        assert watch.may_serve() is not None
    for _ in range(4 * 12):
        clock.advance(0.25)
        watch.look()
    assert watch.may_serve() is None, "and it does not report 'in use' for ever"
