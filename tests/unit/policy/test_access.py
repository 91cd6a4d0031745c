"""Access, data class and residency: fail closed, raise only."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.errors import BadRequest, ModelNotAllowed, ModelNotFound, NotAllowed
from panal.core.ids import DEFAULT_PROJECT, DEFAULT_TENANT, ApiKeyId, PrincipalId
from panal.core.names import name_key
from panal.core.nodes import DataClass
from panal.core.principals import Principal, Role
from panal.policy.access import authorise, effective_data_class, require_role
from panal.policy.residency import node_may_see


def principal(role: Role = Role.USER, data_class: DataClass = DataClass.INTERNAL) -> Principal:
    return Principal(
        PrincipalId("prn_1"), DEFAULT_TENANT, DEFAULT_PROJECT, role, ApiKeyId("key_1"), data_class
    )


def test_a_key_without_names_may_use_all_and_one_with_names_those_only() -> None:
    free, bound = principal(), replace(principal(), models=frozenset({name_key("Small"), "other"}))
    authorise(free, "anything", known=True)
    for written in ("small", "SMALL", " Small "):
        authorise(bound, written, known=True)
    with pytest.raises(ModelNotAllowed) as caught:
        authorise(bound, "large", known=True)
    assert "large" in caught.value.message


def test_an_unknown_name_is_not_found_whatever_the_key_may_use() -> None:
    for who in (principal(), replace(principal(), models=frozenset({"a"}))):
        with pytest.raises(ModelNotFound):
            authorise(who, "a", known=False)


def test_the_message_repeats_no_odd_name() -> None:
    with pytest.raises(ModelNotFound) as caught:
        authorise(principal(), "a\r\nX: y" * 1000, known=False)
    assert len(caught.value.message) < 100
    assert "\n" not in caught.value.message


def test_higher_roles_may_what_lower_ones_may() -> None:
    order = [Role.USER, Role.OPERATOR, Role.ADMIN]
    for have, need in itertools.product(order, order):
        if order.index(have) >= order.index(need):
            require_role(principal(have), need)
        else:
            with pytest.raises(NotAllowed):
                require_role(principal(have), need)


@given(st.sampled_from(DataClass), st.sampled_from(DataClass))
def test_a_request_can_only_raise_its_class(own: DataClass, asked: DataClass) -> None:
    result = effective_data_class(principal(data_class=own), asked.label)
    assert result == max(own, asked)
    assert effective_data_class(principal(data_class=own), None) is own


@given(st.text())
def test_unknown_text_is_refused_and_never_lowers(text: str) -> None:
    known = {member.name for member in DataClass}
    try:
        result = effective_data_class(principal(data_class=DataClass.CONFIDENTIAL), text)
    except BadRequest as error:
        assert text.strip().upper() not in known
        assert error.param == "X-Panal-Data-Class"
    else:
        assert text.strip().upper() in known
        assert result >= DataClass.CONFIDENTIAL


COUNTRIES = ["", "DE", "FR", "ES", "de"]


@given(
    st.integers(-2, 6),
    st.frozensets(st.sampled_from(COUNTRIES)),
    st.integers(-2, 6),
    st.sampled_from(COUNTRIES),
)
def test_a_node_sees_only_what_is_surely_allowed(
    data_class: int, residency: frozenset[str], node_class: int, country: str
) -> None:
    allowed = node_may_see(data_class, residency, node_data_class=node_class, node_country=country)
    sure = 0 <= data_class <= node_class <= 3 and (not residency or (country in residency and country != ""))
    assert allowed == sure


@given(st.sampled_from(DataClass), st.sampled_from(DataClass), st.sampled_from(COUNTRIES))
def test_raising_a_class_never_opens_a_node(low: DataClass, node: DataClass, country: str) -> None:
    for high in DataClass:
        if high >= low and node_may_see(high, {"DE"}, node_data_class=node, node_country=country):
            assert node_may_see(low, {"DE"}, node_data_class=node, node_country=country)
