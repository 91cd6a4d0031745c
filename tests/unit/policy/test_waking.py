"""Hardware addresses that may be woken, and the packet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.policy.waking import MACS_MAX, magic_packet, plain_mac, plain_macs


def test_the_packet_is_six_times_ff_and_sixteen_times_the_address() -> None:
    packet = magic_packet("3c:52:82:0a:0b:0c")
    assert packet.hex() == "ff" * 6 + "3c52820a0b0c" * 16
    assert len(packet) == 102


@pytest.mark.parametrize(
    ("text", "mac"),
    [
        ("3C-52-82-0A-0B-0C", "3c:52:82:0a:0b:0c"),
        (" 3c:52:82:0a:0b:0c\n", "3c:52:82:0a:0b:0c"),
        ("00:00:00:00:00:00", None),
        ("ff:ff:ff:ff:ff:ff", None),
        ("01:00:5e:00:00:01", None),
        ("10.0.0.1", None),
        ("3c:52:82:0a:0b", None),
        ("3c:52:82:0a:0b:0c:0d", None),
        ("", None),
    ],
)
def test_only_the_address_of_one_machine_is_one(text: str, mac: str | None) -> None:
    assert plain_mac(text) == mac


@given(st.lists(st.one_of(st.text(max_size=30), st.integers(), st.binary(max_size=6), st.none())))
def test_whatever_is_told_few_and_well_formed_addresses_come_out(told: list[object]) -> None:
    more = [f"3c:52:82:00:00:{number:02x}" for number in range(20)]
    for found in (plain_macs(told), plain_macs([*told, *more])):
        assert len(found) <= MACS_MAX
        assert all(plain_mac(mac) == mac and len(magic_packet(mac)) == 102 for mac in found)
