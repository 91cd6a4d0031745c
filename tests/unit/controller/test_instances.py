"""A restarted agent and a copied one look alike at first; only what follows tells them apart."""

import pytest

from panal.controller.instances import Instances, Verdict
from panal.core.ids import InstanceId, NodeKey
from panal.core.nodes import INCUMBENT_S

KEY = NodeKey("U" + "A" * 55)
FIRST, SECOND, THIRD = InstanceId("ins_1"), InstanceId("ins_2"), InstanceId("ins_3")


@pytest.fixture
def instances() -> Instances:
    made = Instances()
    assert made.judge(KEY, FIRST, 100.0) is Verdict.SPEAKS
    return made


def test_p24_a_copy_is_known_by_the_first_going_on(instances: Instances) -> None:
    assert instances.judge(KEY, SECOND, 100.2) is Verdict.UNKNOWN
    assert instances.judge(KEY, FIRST, 100.5) is Verdict.SPEAKS
    assert instances.judge(KEY, SECOND, 100.7) is Verdict.COPY
    assert instances.current(KEY) == FIRST


def test_a_restart_is_known_by_the_first_being_silent(instances: Instances) -> None:
    for now_s in (100.5, 101.5, 102.5):
        assert instances.judge(KEY, SECOND, now_s) is Verdict.UNKNOWN
    assert instances.judge(KEY, SECOND, 100.1 + INCUMBENT_S) is Verdict.SPEAKS
    assert instances.judge(KEY, FIRST, 103.5) is Verdict.UNKNOWN


def test_each_newcomer_is_judged_anew(instances: Instances) -> None:
    instances.judge(KEY, SECOND, 100.2)
    instances.judge(KEY, FIRST, 100.5)
    assert instances.judge(KEY, THIRD, 100.6) is Verdict.UNKNOWN
    assert instances.judge(KEY, SECOND, 100.7) is Verdict.UNKNOWN
    instances.judge(KEY, FIRST, 101.0)
    assert instances.judge(KEY, SECOND, 101.1) is Verdict.COPY


def test_a_node_that_is_gone_is_forgotten(instances: Instances) -> None:
    instances.keep_only(set())
    assert instances.judge(KEY, SECOND, 100.1) is Verdict.SPEAKS
