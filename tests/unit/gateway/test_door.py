"""The door with visitors that the test writes itself."""

from panal.gateway.door import Door, address_of


class Guest:
    def __init__(self, address: str = "a") -> None:
        self.address = address
        self.silent: float | None = 0.0
        self.said: list[str] = []

    def silent_s(self, now_s: float) -> float | None:
        return self.silent

    def close_silent(self) -> None:
        self.said.append("closed")

    def hold(self) -> None:
        self.said.append("held")

    def admit(self) -> None:
        self.said.append("admitted")

    def turn_away(self) -> None:
        self.said.append("turned away")


def entered(door: Door, count: int, address: str = "a") -> list[Guest]:
    guests = [Guest(address) for _ in range(count)]
    for guest in guests:
        door.enter(guest, 0.0)
    return guests


def test_a_stranger_too_many_waits_and_the_newest_comes_first() -> None:
    door = Door(100, 2)
    first, second, third, fourth = entered(door, 4)
    assert [guest.said for guest in (first, second, third, fourth)] == [[], [], ["held"], ["held"]]
    door.leave(first)
    assert (third.said, fourth.said) == (["held"], ["held", "admitted"])
    door.known(second)
    assert third.said == ["held", "admitted"]


def test_another_address_is_not_kept_waiting() -> None:
    door = Door(100, 2)
    entered(door, 10)
    assert [guest.said for guest in entered(door, 2, "b")] == [[], []]


def test_the_longest_silent_one_makes_room_and_a_busy_one_does_not() -> None:
    door = Door(100, 3)
    busy, older, old = entered(door, 3)
    busy.silent, older.silent, old.silent = None, 2.0, 1.0
    (newcomer,) = entered(door, 1)
    assert (busy.said, older.said, old.said) == ([], ["closed"], [])
    assert newcomer.said == ["held", "admitted"]


def test_who_showed_a_key_takes_no_stranger_s_place() -> None:
    door = Door(100, 1)
    for _ in range(5):
        (guest,) = entered(door, 1)
        door.known(guest)
        assert guest.said == []
    assert len(door) == 5


def test_beyond_the_limit_for_all_nobody_comes_in_and_nothing_is_kept() -> None:
    door = Door(10, 100)
    inside = entered(door, 10)
    (refused,) = entered(door, 1)
    assert refused.said == ["turned away"]
    door.leave(refused)
    inside[0].silent = 5.0
    door.look(0.0)
    assert [guest.said for guest in inside].count(["closed"]) == 1
    for guest in inside:
        door.leave(guest)
    assert len(door) == 0
    assert door._strangers == {}


def test_an_address_is_a_host_or_a_network_of_one_customer() -> None:
    assert address_of(("192.0.2.7", 1)) == "192.0.2.7"
    assert address_of(("2001:db8:1:2:3::4", 1)) == address_of(("2001:db8:1:2:ffff::1", 2)) == "2001:db8:1:2::"
    assert address_of(("fe80::1%eth0", 1)) == "fe80::"
    assert address_of(("::ffff:192.0.2.7", 1)) == "::ffff:192.0.2.7"
    assert address_of(None) == ""
