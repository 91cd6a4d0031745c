"""Join tokens are made within bounds and told apart in constant time."""

import os
from dataclasses import replace

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import BadRequest
from panal.core.ids import IdSource
from panal.core.nodes import DataClass, NodeClass
from panal.core.records import utc_us
from panal.identity.join_tokens import TokenWish, new_token, same_secret, why_unusable
from panal.protocol.joining import JoinToken
from tests.support.rows import key_row

PIN = "0123456789abcdef" * 2


def make(wish: TokenWish):
    clock = ManualClock()
    ids = IdSource(clock, os.urandom)
    creator = key_row().principal()
    return new_token(wish, creator=creator, pin=PIN, ids=ids, clock=clock, entropy=os.urandom)


def test_a_token_reads_back_and_the_record_has_no_secret():
    token, record = make(TokenWish(node_class=NodeClass.LAPTOP, site="Bilbao 2", country="ES", uses=3))
    assert JoinToken.parse(token.text()) == token
    assert token.pin == PIN
    assert (record.public_id, record.uses_left, record.node_class) == (token.id, 3, NodeClass.LAPTOP)
    assert token.secret not in repr(record)


def test_a_token_has_one_use_and_one_hour_unless_wished_otherwise():
    _, record = make(TokenWish())
    assert record.uses_left == 1
    assert record.expires_utc_us - record.created_utc_us == 3_600_000_000
    assert record.data_class is DataClass.INTERNAL


@pytest.mark.parametrize(
    "wish",
    [
        TokenWish(uses=0),
        TokenWish(uses=10_001),
        TokenWish(life_s=0),
        TokenWish(life_s=24 * 3600 + 1),
        TokenWish(country="Spain"),
        TokenWish(country="es"),
        TokenWish(site="x" * 65),
        TokenWish(site="a\nb"),
    ],
)
def test_wishes_out_of_bounds_are_refused(wish):
    with pytest.raises(BadRequest):
        make(wish)


def test_only_the_right_secret_fits():
    token, record = make(TokenWish())
    other, _ = make(TokenWish())
    assert same_secret(token, record)
    assert not same_secret(other, record)
    assert not same_secret(JoinToken(token.id, other.secret, PIN), record)
    assert not same_secret(token, None)


def test_each_way_of_being_dead_has_its_sentence():
    _, record = make(TokenWish())
    now = utc_us(ManualClock())
    assert why_unusable(record, now) is None
    assert "expired" in str(why_unusable(record, record.expires_utc_us))
    assert "used up" in str(why_unusable(replace(record, uses_left=0), now))
    assert "revoked" in str(why_unusable(replace(record, revoked_utc_us=now), now))
