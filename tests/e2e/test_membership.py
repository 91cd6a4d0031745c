"""How machines become nodes, stay, rest and go: over the real path, with real programs, on loopback."""

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from panal.cli.api_client import Api, ApiRefused
from panal.core.clock import SystemClock
from panal.core.errors import BusError, NotAllowed
from panal.node import joining
from panal.node.enrolled import load_enrolled
from tests.e2e.test_slice import Reading
from tests.support.display import display
from tests.support.ends import sentence_of, the_sentence
from tests.support.installation import Installation, processes_naming, short_folder, until
from tests.support.members import Member, Members

DELAY_S = 0.015
LONG: dict[str, Any] = {
    "model": "echo",
    "messages": [{"role": "user", "content": "count 150 🐝 é ñ"}],
    "extra_body": {"x_echo": {"delay_token_s": DELAY_S}},
}
SHORT: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "short"}]}
CREDENTIAL_S = 10
SLOW_S = 0.05
DRAINED_S = 0.04
"""Slow enough that the answer is not over when a drained desk hands it over, after 10 s."""


@pytest.fixture(scope="module")
def place() -> Iterator[Installation]:
    """A gateway whose credentials are as short as they may be, so that every test lives through renewals."""
    with short_folder() as made:
        installation = Installation(
            made,
            arguments=["--no-node"],
            environment={"PANAL_NODE__CREDENTIAL_S": str(CREDENTIAL_S)},
        ).start()
        try:
            yield installation
        finally:
            installation.stop()


@pytest.fixture
def members(place: Installation) -> Iterator[Members]:
    with short_folder() as folder:
        made = Members(place, folder)
        try:
            yield made
        finally:
            made.close()
            for member in made.made:
                with contextlib.suppress(ApiRefused, BusError):
                    place.admin().post(f"/api/v1/nodes/{member.node}/revoke")


class Client:
    """The installation as Reading needs it."""

    def __init__(self, place: Installation) -> None:
        self._place = place

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self._place.url}/v1", api_key=self._place.key, max_retries=0, timeout=90.0
        )


def reading(place: Installation, request: dict[str, Any] = LONG) -> Reading:
    """A stream in the background; before it no node does anything, so that the one that speaks shows."""

    def resting() -> bool:
        nodes = place.admin().get("/api/v1/fleet")["nodes"]
        return not any(each["running"] for node in nodes for each in node["replicas"])

    until(resting, 20.0, "every node rests")
    return Reading(Client(place), request)  # type: ignore[arg-type]


def whole(place: Installation) -> str:
    """The long answer as it is when nothing disturbs it."""
    body = {**LONG, "x_echo": {"delay_token_s": 0.0}}
    del body["extra_body"]
    return str(
        Api(place.url, place.key).post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
    )


def makers(place: Installation, response_id: str) -> list[str]:
    """The nodes that made an answer, in order; who only warmed up for it did not."""
    request = "req_" + re.sub(r"^[a-z]+-", "", response_id)

    def settled() -> bool:
        records = place.admin().get("/api/v1/usage", limit=100)["items"]
        return any(record["request"] == request for record in records)

    until(settled, 20.0, "the request is in the store")
    made = place.admin().get(f"/api/v1/usage/{request}/contributions")
    return [each["node"] for each in made if each["useful_tokens"]]


def maker(place: Installation) -> str:
    """The node that answers a short request now."""
    return makers(place, Api(place.url, place.key).post("/v1/chat/completions", SHORT)["id"])[0]


def speaking(members: Members, *among: Member) -> Member:
    def found() -> Member | None:
        live = members.live()
        running = [each for each in among if any(r["running"] for r in live[each.node]["replicas"])]
        return running[0] if running else None

    answer: Member = until(found, 10.0, "a node speaks")
    return answer


# --- joining -----------------------------------------------------------------------------------------


def refused_join(members: Members, token: str) -> str:
    home = members.folder / "refused"
    sentence = sentence_of(["join", members.url, "--token", token], members.environment(home))
    assert load_enrolled(home / "agent") is None, "a machine that was refused keeps nothing"
    return sentence


@pytest.mark.timeout(180)
def test_tokens_that_are_used_expired_revoked_or_of_another_installation(members: Members) -> None:
    place = members.installation
    once = place.run("tokens", "create", "--class", "dedicated", "--uses", "1")["token"]
    member = members.join(once)
    members.until_serving(member)
    assert "used up" in refused_join(members, once)
    short = place.run("tokens", "create", "--expires", "1s")
    until(lambda: _state(place, short) == "expired", 10.0, "the token expires")
    assert "expired" in refused_join(members, short["token"])
    revoked = place.run("tokens", "create")
    place.run("tokens", "revoke", revoked["view"]["id"])
    assert "revoked" in refused_join(members, revoked["token"])
    head, _, pin = once.rpartition("_")
    foreign = f"{head}_{'0' * len(pin)}"
    assert "not the one that this join token was made for" in refused_join(members, foreign)
    assert "token" in refused_join(members, "pnl1_nonsense")
    assert "already" in sentence_of(["join", members.url, "--token", once], member.environment)
    assert members.serves(member)


def _state(place: Installation, made: dict[str, Any]) -> str:
    listed = {each["id"]: each["state"] for each in place.run("tokens", "list")}
    return str(listed[made["view"]["id"]])


@pytest.mark.parametrize("url", ["http://127.0.0.1:7080", "https://127.0.0.1:9", "https://127.0.0.1:port"])
def test_an_address_that_cannot_be_joined_is_told(members: Members, url: str) -> None:
    home = members.folder / "wrong"
    token = members.token()
    assert url in sentence_of(["join", url, "--token", token], members.environment(home))


def test_joining_again_with_the_same_key_changes_nothing(members: Members) -> None:
    """As when the answer was lost on its way: the machine asks once more."""
    token = members.installation.run("tokens", "create", "--class", "dedicated")["token"]
    seeds = iter([bytes(range(32))] * 2)

    def entropy(count: int) -> bytes:
        return next(seeds)[:count]

    first, again = (
        joining.join(members.url, token, joining.Machine("twice", ""), SystemClock(), entropy)
        for _ in range(2)
    )
    assert (first.node, first.name, first.key_seed) == (again.node, again.name, again.key_seed)
    members.installation.run("nodes", "revoke", first.node)
    with pytest.raises(NotAllowed, match="revoked"):
        joining.fresh_credential(first, SystemClock())


@pytest.mark.timeout(180)
def test_a_machine_that_needs_approval_gets_no_work_before(members: Members) -> None:
    place = members.installation
    member = members.join(members.token("--approve"))
    assert f"panal nodes approve {member.name}" in member.program.output
    assert place.run("nodes", "show", member.node)["membership"] == "pending"
    assert member.node not in members.live()
    with pytest.raises(ApiRefused):
        Api(place.url, place.key).post("/v1/chat/completions", {**SHORT, "timeout_s": 1})
    place.run("nodes", "approve", member.name)
    members.until_serving(member)
    assert maker(place) == member.node


# --- revoking ----------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_a_revoked_node_is_cut_off_at_once_and_for_good(members: Members) -> None:
    place = members.installation
    first, second = members.join(), members.join()
    members.until_serving(first, second)
    text = whole(place)
    stream = reading(place)
    stream.until_pieces(10)
    gone = speaking(members, first, second)
    other = second if gone is first else first
    place.run("nodes", "revoke", gone.name, "--reason", "lost laptop")
    assert gone.program.wait(10.0) != 0
    assert "revoked" in the_sentence(gone.program.output)
    assert stream.end() == text
    assert len(stream.ids) == 1 and len(stream.finishes) == 1
    assert makers(place, stream.ids.pop()) == [gone.node, other.node]
    assert gone.node not in members.live()
    until(lambda: not processes_naming(str(gone.home)), 15.0, "its engine is gone as well")

    refuses_to_start(gone)
    assert place.program is not None
    for each in processes_naming(str(place.home)):
        each.kill()  # gateway and bus; they come back by themselves
    until(lambda: members.serves(other), 60.0, "everything is there again")
    refuses_to_start(gone)
    assert maker(place) == other.node


def refuses_to_start(member: Member) -> None:
    member.program.kill()
    member.start()
    assert member.program.wait(30.0) != 0
    assert "revoked" in the_sentence(member.program.output)


# --- resting -----------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_cordon_lets_running_answers_end_drain_hands_them_over_uncordon_undoes(members: Members) -> None:
    place = members.installation
    first, second = members.join(), members.join()
    members.until_serving(first, second)
    text = whole(place)
    stream = reading(place)
    stream.until_pieces(10)
    resting = speaking(members, first, second)
    other = second if resting is first else first
    place.run("nodes", "cordon", resting.name)
    assert {maker(place) for _ in range(4)} == {other.node}
    assert stream.end() == text
    assert makers(place, stream.ids.pop()) == [resting.node]
    place.run("nodes", "uncordon", resting.name)
    members.until_serving(resting)

    place.run("nodes", "cordon", other.name)
    stream = reading(place)
    stream.until_pieces(10)
    place.run("nodes", "uncordon", other.name)
    members.until_serving(other)
    place.run("nodes", "drain", resting.name)
    assert {maker(place) for _ in range(4)} == {other.node}
    assert stream.end() == text
    assert len(stream.finishes) == 1
    assert makers(place, stream.ids.pop())[0] == resting.node
    place.run("nodes", "uncordon", resting.name)
    members.until_serving(resting)
    place.run("nodes", "cordon", other.name)
    until(lambda: maker(place) == resting.node, 20.0, "it takes work again")


@pytest.mark.timeout(240)
def test_a_drained_desk_hands_its_answer_over(members: Members) -> None:
    place = members.installation
    server = members.join()
    members.until_serving(server)
    text = whole(place)
    with display() as screen:
        token = place.run("tokens", "create", "--class", "workstation")["token"]
        desk = members.join(token, DISPLAY=screen.name, PANAL_OWNER__IDLE_S="1")
        members.until_serving(desk)
        place.run("nodes", "cordon", server.name)
        stream = reading(place, {**LONG, "extra_body": {"x_echo": {"delay_token_s": DRAINED_S}}})
        stream.until_pieces(5)
        place.run("nodes", "uncordon", server.name)
        members.until_serving(server)
        place.run("nodes", "drain", desk.name)
        assert stream.end() == text
        assert len(stream.ids) == 1 and len(stream.finishes) == 1
        assert makers(place, stream.ids.pop()) == [desk.node, server.node]
        until(lambda: not desk.engines(), 20.0, "a drained machine runs no engine")


@pytest.mark.timeout(240)
def test_a_cordon_survives_the_agent_and_the_gateway(members: Members) -> None:
    place = members.installation
    member = members.join()
    members.until_serving(member)
    place.run("nodes", "cordon", member.name)
    until(lambda: members.live()[member.node]["state"] == "draining", 15.0, "the agent knows")
    member.stop()
    member.start()
    until(lambda: live_again(members, member) == "draining", 40.0, "the new agent knows as well")
    place.run("nodes", "uncordon", member.name)
    members.until_serving(member)


def live_again(members: Members, member: Member) -> str:
    node = members.live()[member.node]
    return str(node["state"]) if node["liveness"] == "live" else ""


# --- credentials -------------------------------------------------------------------------------------


@pytest.mark.timeout(180)
def test_credentials_are_renewed_with_nothing_lost(members: Members) -> None:
    place = members.installation
    member = members.join()
    members.until_serving(member)
    first = load_enrolled(member.agent_home)
    assert first is not None
    slow = {**LONG, "extra_body": {"x_echo": {"delay_token_s": SLOW_S}}}
    text = whole(place)
    stream = reading(place, slow)
    credentials, lowest = {first.credential}, ""
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < 2.3 * CREDENTIAL_S and stream.error is None:
        enrolled = load_enrolled(member.agent_home)
        assert enrolled is not None
        credentials.add(enrolled.credential)
        node = members.live()[member.node]
        lowest = max(lowest, {"live": "", "stale": "a", "lost": "b"}[node["liveness"]])
        time.sleep(0.1)
    assert stream.end() == text
    assert makers(place, stream.ids.pop()) == [member.node]
    assert len(credentials) >= 4, "several renewals happened"
    assert lowest == "", "the node was never stale"


@pytest.mark.timeout(120)
def test_a_node_that_slept_longer_than_its_credential_comes_back(members: Members) -> None:
    member = members.join()
    members.until_serving(member)
    for each in processes_naming(str(member.home)):
        each.send_signal(signal.SIGSTOP)
    time.sleep(CREDENTIAL_S + 1.0)
    for each in processes_naming(str(member.home)):
        each.send_signal(signal.SIGCONT)
    members.until_serving(member)
    member.stop()
    time.sleep(CREDENTIAL_S + 1.0)
    member.start()
    members.until_serving(member)


# --- the owner ---------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_the_owners_pause_works_without_a_gateway_and_beats_everything(folder: Path) -> None:
    place = Installation(folder / "gateway", arguments=["--no-node"])
    place.home.parent.mkdir()
    place.start()
    members = Members(place, folder)
    try:
        member = members.join()
        members.until_serving(member)
        place.stop()
        owner = Installation(folder)
        owner.environment = member.environment
        assert owner.run("desk", "pause")["until_utc_s"] is None
        until(lambda: not member.engines(), 10.0, "the engine is gone")
        until(lambda: owner.run("desk", "status")["status"]["paused"], 10.0, "the agent says it is paused")
        member.program.kill()
        member.start()
        until(lambda: owner.run("desk", "status")["fresh"], 20.0, "the agent runs again")
        place.start()
        until(lambda: members.live()[member.node]["liveness"] == "live", 60.0, "it is on the bus again")
        place.run("nodes", "cordon", member.node)
        place.run("nodes", "uncordon", member.node)
        assert members.live()[member.node]["state"] == "owner"
        assert not member.engines(), "no policy of others ends the owner's pause"
        assert owner.run("desk", "resume") == {"was_paused": True}
        members.until_serving(member)
    finally:
        members.close()
        place.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made
