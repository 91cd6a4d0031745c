"""Leases over random interleavings: reads, writes and answers in any order, held up for any time."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from panal.policy.lease import LEASE_S, MARGIN_S, NOBODY, LeaseRow, Move, Tenure, renewed, taken

FASTEST = LEASE_S / (LEASE_S - MARGIN_S)
"""How much faster than another a clock may run: what the margin allows for."""


@dataclass
class Database:
    row: LeaseRow = field(default_factory=lambda: LeaseRow(NOBODY, 0, 0))

    def change(self, seen: LeaseRow, wanted: LeaseRow) -> bool:
        if self.row != seen:
            return False
        self.row = wanted
        return True


@dataclass
class Candidate:
    """A process with a clock of its own; each of its steps may be held up for as long as one likes."""

    name: str
    rate: float
    offset_s: float
    real_s: float = 0.0
    read: LeaseRow | None = None
    sent: tuple[LeaseRow, LeaseRow, float] | None = None
    answer: bool | None = None

    def __post_init__(self) -> None:
        self.tenure = Tenure(self.name)

    def now_s(self) -> float:
        return self.offset_s + self.rate * self.real_s

    def step(self, database: Database, lost: bool) -> None:
        """The next of: read in the database, hear the answer and send, write in the database, hear of it."""
        if self.sent is not None and self.answer is not None:
            _seen, wanted, asked_s = self.sent
            if lost:
                pass  # it never hears how it ended
            elif self.answer:
                self.tenure.held(wanted, asked_s, self.now_s())
            else:
                self.tenure.lost()
            self.sent = self.answer = None
        elif self.sent is not None:
            self.answer = database.change(self.sent[0], self.sent[1])
        elif self.read is not None:
            self.tenure.seen(self.read, self.now_s())
            self.read = None
            move, row = self.tenure.next_move(self.now_s())
            if move is not Move.WAIT:
                wanted = renewed(row) if move is Move.RENEW else taken(row, self.name, 0.0)
                self.sent = (row, wanted, self.now_s())
        else:
            self.read = database.row


PAUSES_S = (0.0, 0.0, 0.1, 0.6, 1.5, LEASE_S - MARGIN_S, LEASE_S)
STEPS = 120


@settings(max_examples=1000)
@given(st.randoms(use_true_random=True))
def test_never_do_two_believe_that_they_lead(chance):
    """Each takes some steps, then some time passes; one in ten never hears of what it wrote."""
    database = Database()
    both = [Candidate(name, chance.choice((1.0, FASTEST)), chance.uniform(0, 9)) for name in ("gw_a", "gw_b")]
    term = 0
    for _ in range(STEPS):
        one = chance.choice(both)
        for _ in range(chance.randint(1, 4)):
            one.step(database, lost=chance.random() < 0.1)
        pause_s = chance.choice(PAUSES_S)
        for each in both:
            each.real_s += pause_s
        led = [found for each in both if (found := each.tenure.term(each.now_s())) is not None]
        assert len(led) <= 1
        assert all(each == database.row.term for each in led)
        assert database.row.term >= term
        term = database.row.term


def alone(*, since_s: float = 0.0) -> tuple[Tenure, LeaseRow]:
    tenure = Tenure("gw_a")
    row = taken(LeaseRow(NOBODY, 4, 9), "gw_a", utc_s=100.0)
    tenure.held(row, since_s, since_s)
    return tenure, row


def test_a_free_lease_is_taken_at_once_and_another_ones_after_its_time():
    tenure = Tenure("gw_b")
    tenure.seen(LeaseRow(NOBODY, 4, 9), 0.0)
    assert tenure.next_move(0.0) == (Move.TAKE, LeaseRow(NOBODY, 4, 9))
    row = LeaseRow("gw_a", 5, 0)
    tenure.seen(row, 1.0)
    assert tenure.next_move(1.0 + LEASE_S - 0.01) == (Move.WAIT, row)
    assert tenure.next_move(1.0 + LEASE_S) == (Move.TAKE, row)
    tenure.seen(renewed(row), 1.0 + LEASE_S)
    assert tenure.next_move(1.0 + LEASE_S)[0] is Move.WAIT


def test_the_holder_is_sure_of_itself_only_as_long_as_nobody_can_take_it():
    tenure, row = alone()
    assert tenure.term(LEASE_S - MARGIN_S - 0.01) == row.term == 100
    assert tenure.term(LEASE_S - MARGIN_S) is None


def test_the_time_counts_from_when_a_renewal_was_sent_and_not_from_its_answer():
    tenure, row = alone()
    tenure.held(renewed(row), 1.0, 3.0)
    assert tenure.term(1.0 + LEASE_S - MARGIN_S - 0.01) == row.term
    assert tenure.term(1.0 + LEASE_S - MARGIN_S) is None


def test_who_sees_another_holder_leads_no_more():
    tenure, row = alone()
    tenure.seen(LeaseRow("gw_b", row.term + 1, 0), 0.5)
    assert tenure.term(0.5) is None


def test_who_did_not_hear_that_its_taking_succeeded_goes_on_in_that_term():
    tenure = Tenure("gw_a")
    row = LeaseRow("gw_a", 100, 0)
    tenure.seen(row, 0.0)
    assert tenure.next_move(0.0) == (Move.RENEW, row)
    assert tenure.term(0.0) is None
    tenure.held(renewed(row), 0.0, 0.1)
    assert tenure.term(0.1) == 100


def test_terms_rise_also_over_the_restore_of_an_older_database():
    assert taken(LeaseRow(NOBODY, 3, 0), "gw_a", utc_s=1_790_000_000.4).term == 1_790_000_000
    assert taken(LeaseRow("gw_b", 1_790_000_005, 7), "gw_a", utc_s=1_790_000_000).term == 1_790_000_006
