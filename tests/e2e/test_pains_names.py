"""Names of models on two gateway processes over one store: aliases, rights, resting models, series."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import openai
import pytest

from tests.support.asking import say, wire
from tests.support.installation import Program, until
from tests.support.second_gateway import second_gateway
from tests.support.served import Reply, Served

IN_FORCE_S = 2.0
"""The promise itself: a change holds in every gateway process within this time."""

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
}


@pytest.fixture(scope="module")
def ports(served: Served) -> Iterator[tuple[int, int]]:
    with second_gateway(served) as port:
        yield served.installation.http_port, port


class Asker:
    """Somebody with a key, who asks on every route of every gateway process."""

    def __init__(self, served: Served, ports: tuple[int, ...], key_id: str, secret: str) -> None:
        self.key_id = key_id
        self._served, self._ports, self.secret = served, ports, secret

    def ask(self, name: str, *, stream: bool = False) -> list[Reply]:
        more = {"stream": True} if stream else {}
        return [
            self._served.call("POST", path, {"model": name} | body | more, key=self.secret, port=port)
            for port in self._ports
            for path, body in BODIES.items()
        ] + [
            self._served.call("GET", f"/v1/models/{quote(name, safe='')}", key=self.secret, port=port)
            for port in self._ports
        ]

    def are(self, name: str, status: int, code: str = "") -> bool:
        """Whether that is the answer everywhere."""
        found = self.ask(name)
        return all(reply.status == status and (not code or reply.error["code"] == code) for reply in found)

    def until_are(self, name: str, status: int, code: str = "") -> None:
        until(lambda: self.are(name, status, code), IN_FORCE_S, f"'{name}' is {status} everywhere")

    def listed(self) -> list[list[str]]:
        replies = [self._served.call("GET", "/v1/models", key=self.secret, port=port) for port in self._ports]
        return [[model["id"] for model in reply.json["data"]] for reply in replies]


@pytest.fixture
def asker(served: Served, ports: tuple[int, int]) -> Iterator[Asker]:
    """A key of its own, and no aliases at the beginning and at the end."""
    made = served.admin().post("/api/v1/keys", {"name": "p14"})
    found = Asker(served, ports, made["view"]["id"], made["secret"])
    found.until_are("echo", 200)
    yield found
    served.admin().delete(f"/api/v1/keys/{made['view']['id']}")
    for each in served.admin().get("/api/v1/aliases")["items"]:
        served.admin().delete(f"/api/v1/aliases/{quote(each['name'], safe='')}")


def test_p14_renamed_and_forbidden_names_hold_on_every_route_of_every_gateway(
    served: Served, asker: Asker
) -> None:
    """Alias A for a model; renamed to B; B taken from one key; each by command, each asked for at once."""
    run = served.installation.run
    key_id = asker.key_id
    run("models", "alias", "set", "Name A", "echo")
    asker.until_are("Name A", 200)
    for written in ("Name A", "name a", "  NAME A "):
        for reply in asker.ask(written)[:6]:
            assert reply.json["model"] == written, "the client's own spelling"
        for reply in asker.ask(written)[6:]:
            assert reply.json["id"] == "Name A"
    run("keys", "models", key_id, "--model", "name a", "--model", "elsewhere")
    asker.until_are("echo", 403, "model_not_allowed")
    assert asker.are("Name A", 200)
    assert asker.listed() == [["Name A"]] * 2
    run("models", "alias", "rename", "name a", "org/B")
    asker.until_are("Name A", 404, "model_not_found")
    asker.until_are("org/b", 200)  # the right went along
    run("keys", "models", key_id, "--model", "elsewhere")
    asker.until_are("org/B", 403, "model_not_allowed")
    assert asker.are("Name A", 404, "model_not_found")
    assert asker.listed() == [[]] * 2
    refused = asker.ask("org/B")[0].error
    assert "org/B" in refused["message"] and refused["param"] == "model"
    run("keys", "models", key_id, "--all")
    asker.until_are("org/B", 200)
    assert asker.listed() == [["echo", "org/B"]] * 2
    run("models", "alias", "remove", "ORG/b")
    asker.until_are("org/B", 404, "model_not_found")
    actions = [event["action"] for event in run("audit", "list") if event["outcome"] != "refused"]
    expected = ["alias.create", "key.models", "alias.rename", "key.models", "key.models", "alias.remove"]
    assert actions[:6] == expected[::-1]


def test_p14_streams_name_the_alias_too(served: Served, asker: Asker) -> None:
    served.admin().call("PUT", "/api/v1/aliases/Fast", {"model": "ECHO"})
    asker.until_are("fast", 200)
    for path in ("/v1/chat/completions", "/v1/completions"):
        events = served.events(path, {"model": "FAST"} | BODIES[path])
        chunks = [json.loads(event) for event in events if event.startswith("{")]
        assert chunks
        assert {chunk["model"] for chunk in chunks} == {"FAST"}
    with served.client() as client:
        streamed = client.chat.completions.create(**say("x") | {"model": "fast"}, stream=True)
        assert {chunk.model for chunk in streamed} == {"fast"}
        assert client.embeddings.create(model="fast", input="x").model == "fast"


def test_the_books_hold_the_model_and_the_name_that_was_used(served: Served, asker: Asker) -> None:
    served.admin().call("PUT", "/api/v1/aliases/booked", {"model": "echo"})
    asker.until_are("booked", 200)
    for name, used in (("BOOKED", "BOOKED"), ("echo", "")):
        reply = served.call("POST", "/v1/chat/completions", wire(say("x") | {"model": name}))
        record = served.record_of(reply.json["id"])
        assert (record["model"], record["name_used"]) == ("echo", used)


def test_an_alias_never_takes_the_name_of_a_model_and_leads_to_none_that_is_unknown(
    served: Served, asker: Asker
) -> None:
    for name, model, status in (("ECHO", "echo", 409), ("x", "never", 404)):
        reply = served.call(
            "PUT", f"/api/v1/aliases/{name}", {"model": model}, key=served.installation.admin_key
        )
        assert reply.status == status
    assert asker.are("x", 404, "model_not_found")


def test_the_list_of_models_shows_who_answers_to_what(served: Served, asker: Asker) -> None:
    served.admin().call("PUT", "/api/v1/aliases/one", {"model": "echo"})
    served.admin().call("PUT", "/api/v1/aliases/two", {"model": "echo"})
    run = served.installation.run
    (row,) = run("models", "list")
    assert (row["model"], row["aliases"]) == ("echo", ["one", "two"])
    assert row["nodes"]
    assert [each["name"] for each in run("models", "alias", "list")] == ["one", "two"]
    made = run("keys", "create", "small", "--model", "one")
    assert made["view"]["models"] == ["one"]


def test_a_restricted_key_sees_only_its_names_in_the_fleet_and_chats_by_one_of_them(
    served: Served, asker: Asker
) -> None:
    served.admin().call("PUT", "/api/v1/aliases/chatty", {"model": "echo"})
    for allowed, seen in ((["chatty"], ["chatty"]), (["echo", "chatty"], ["echo"]), (["elsewhere"], [])):
        served.admin().call("PUT", f"/api/v1/keys/{asker.key_id}/models", {"models": allowed})
        until(lambda seen=seen: fleet_names(served, asker) == (seen, seen), IN_FORCE_S, f"only {seen}")
        chat = Program(
            ["chat", "hello", "--json"],
            served.installation.environment
            | {"PANAL_API_KEY": asker.secret, "PANAL_URL": served.installation.url},
        )
        status = chat.wait(30.0)
        chat.kill()
        assert (status == 0) == bool(seen), chat.output
        assert seen or "No model that this key may use" in chat.output
    assert served.admin().get("/api/v1/fleet")["models"] == ["echo"]


def fleet_names(served: Served, asker: Asker) -> tuple[list[str], list[str]]:
    """Models and models of replicas, as the asker's key is shown them."""
    fleet = served.call("GET", "/api/v1/fleet", key=asker.secret).json
    return fleet["models"], [each["model"] for node in fleet["nodes"] for each in node["replicas"]]


def test_p40_aliases_and_other_spellings_make_no_series(served: Served, asker: Asker) -> None:
    """After one request by the model's own name, aliases, cases and unknown names add nothing."""
    asker.until_are("echo", 200)
    assert asker.are("never", 404)
    served.until_idle()
    before = series(served)
    for number in range(20):
        served.admin().call("PUT", f"/api/v1/aliases/alias-{number}", {"model": "echo"})
    asker.until_are("alias-19", 200)
    for number in range(20):
        assert asker.are(f"ALIAS-{number}", 200)
    assert asker.are(" Echo", 200)
    assert asker.are("never-either", 404)
    served.until_idle()
    assert series(served) - before == set()
    assert "alias-" not in served.metrics().lower()


def test_p13_an_alias_of_a_resting_model_is_503_and_still_listed(served: Served, asker: Asker) -> None:
    """The only node is cordoned."""
    run = served.installation.run
    served.admin().call("PUT", "/api/v1/aliases/sleepy", {"model": "echo"})
    asker.until_are("sleepy", 200)
    (node,) = run("nodes", "list")
    run("nodes", "cordon", node["name"])
    inference = slice(0, 6)

    def rests() -> bool:
        return all(reply.status == 503 for reply in asker.ask("Sleepy")[inference])

    until(rests, 10.0, "the model rests in both gateways")
    for name in ("Sleepy", "echo"):
        for reply in asker.ask(name)[inference]:
            assert reply.error["code"] == "no_replica_available"
            assert int(reply.headers["retry-after"]) >= 1
            assert name in reply.error["message"]
    assert asker.are("nobody", 404, "model_not_found")
    assert asker.listed() == [["echo", "sleepy"]] * 2
    with served.client() as client, pytest.raises(openai.InternalServerError):
        client.chat.completions.create(**say("x") | {"model": "sleepy"})
    run("nodes", "uncordon", node["name"])
    until(lambda: asker.are("Sleepy", 200), 10.0, "it serves again")


def series(served: Served) -> set[str]:
    """Names and labels of everything that is scraped."""
    return {line.rpartition(" ")[0] for line in served.metrics().splitlines() if not line.startswith("#")}
