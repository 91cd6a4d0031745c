"""P22: a desk whose network was gone for longer than its credential lives comes back by itself and serves."""

import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.desks import Desk, Office, office
from tests.support.installation import short_folder, until

CREDENTIAL_S = 30
CUT_S = 45.0
SERVES_S_MAX = 30.0


@pytest.mark.timeout(240)
def test_p22_after_the_network_comes_back_the_node_serves_with_no_manual_step() -> None:
    """The link is down for longer than the credential lives: packets vanish, nobody hangs up."""
    with short_folder() as folder, place(folder) as made:
        desk = made.desks[0]
        before = made.fleet()[desk.name]
        agent = desk.agent_process().pid
        desk.host.cut()
        cut_s = time.monotonic()
        until(lambda: liveness(made, desk) == "lost", 40.0, "the gateway knows that it is lost")
        until(lambda: time.monotonic() - cut_s > CUT_S, CUT_S + 1.0, "the outage is over")
        desk.host.restore()
        restored_s = time.monotonic()
        until(lambda: made.fleet()[desk.name]["state"] == "available", SERVES_S_MAX, "it serves again")
        with made.client() as client:
            answer = client.chat.completions.create(
                model="echo", messages=[{"role": "user", "content": "are you there?"}]
            )
        served_s = time.monotonic() - restored_s
        print(f"served {served_s:.1f} s after the link was back")
        assert answer.choices[0].message.content == "are you there?"
        assert served_s < SERVES_S_MAX
        assert [each["node"] for each in made.contributions(answer.id)] == [desk.node]
        assert made.fleet()[desk.name]["id"] == before["id"]
        assert len(made.fleet()) == 1, "one node, not two"
        assert desk.agent_process().pid == agent, "nobody started anything"
        assert len(desk.engines()) == 1, "the engine was adopted or stopped, and none is forgotten"


def place(folder: Path) -> AbstractContextManager[Office]:
    return office(folder, "echo", 1, environment={"PANAL_NODE__CREDENTIAL_S": str(CREDENTIAL_S)})


def liveness(made: Office, desk: Desk) -> str:
    return str(made.fleet()[desk.name]["liveness"])
