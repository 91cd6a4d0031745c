"""Doors and keys: who gets in, where it listens, and where a key's text may stand."""

import base64
import hashlib
import http.client
import os
import re
import ssl
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from panal.node.weights import SMOLLM2_135M, ModelCache, cache_folder
from tests.support.installation import Installation, processes_naming, short_folder, until
from tests.support.relay import relay
from tests.support.served import EngineSeen, Served

ENVIRONMENT = {"PANAL_LOG__LEVEL": "debug"}
LOOPBACK = {"127.0.0.1", "::1"}
OPEN_TO_ALL = {"/health", "/ready", "/join/v1/authority", "/join/v1/nodes", "/join/v1/credentials"}
FORGED = [
    {},
    {"X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1", "Forwarded": "for=127.0.0.1;by=127.0.0.1"},
    {"X-Forwarded-User": "admin", "Remote-User": "admin", "X-Forwarded-Email": "admin@example.com"},
    {"Host": "localhost", "X-Forwarded-Host": "localhost", "X-Forwarded-Proto": "https"},
    {"Authorization": "Basic YWRtaW46YWRtaW4="},
    {"Authorization": "Bearer "},
    {"X-API-Key": "admin", "Cookie": "session=admin"},
]


def routes(served: Served) -> list[tuple[str, str]]:
    """Every method and path that the installation has and that needs a key."""
    document = served.admin().get("/api/v1/openapi.json")
    found = [
        (method.upper(), re.sub(r"{\w+}", "x", path))
        for path, methods in document["paths"].items()
        for method in methods
    ]
    assert len(found) > 15
    data = [("POST", f"/v1/{name}") for name in ("chat/completions", "completions", "embeddings")]
    return [*found, *data, ("GET", "/v1/models"), ("GET", "/v1/models/echo"), ("GET", "/metrics")]


def decided_of(served: Served) -> list[dict[str, object]]:
    """What operators decided about nodes; when a node was last seen changes by itself."""
    nodes = served.admin().get("/api/v1/nodes")["items"]
    return [{name: value for name, value in node.items() if name != "last_seen_utc_s"} for node in nodes]


def test_p31_no_address_and_no_header_opens_a_door(served: Served) -> None:
    """Straight, and through a proxy on the same host, which makes everybody local."""
    before = decided_of(served)
    with relay(served.installation.http_port, 60.0) as proxy:
        for method, path in routes(served):
            for port, headers in [(served.installation.http_port, each) for each in FORGED] + [
                (proxy.port, FORGED[1])
            ]:
                status, answer = ask(port, method, path, headers)
                assert status == 401, (method, path, headers, answer)
                assert b"invalid_api_key" in answer
    assert decided_of(served) == before


def test_p31_what_is_open_to_all_is_known(served: Served) -> None:
    """Routes that do not exist and documents that frameworks add by themselves give nothing away."""
    for path in ("/docs", "/redoc", "/openapi.json", "/debug", "/admin", "/api", "/", "/v1", "/metrics/"):
        status, answer = ask(served.installation.http_port, "GET", path, {})
        assert status in (401, 404, 307), path
        assert b"<html" not in answer.lower()
    for path in OPEN_TO_ALL:
        method = "GET" if path in ("/health", "/ready", "/join/v1/authority") else "POST"
        status, _answer = ask(served.installation.http_port, method, path, {})
        assert status != 404
        assert status < 500


def test_p31_a_users_key_is_no_operators(served: Served) -> None:
    for method, path in (("GET", "/metrics"), ("GET", "/api/v1/nodes"), ("GET", "/api/v1/audit")):
        for headers in FORGED[:4]:
            reply = served.call(method, path, headers=headers)
            assert (reply.status, reply.error["code"]) == (403, "not_allowed"), path
    assert served.call("POST", "/api/v1/tokens", {}).status == 403
    assert served.call("POST", "/api/v1/nodes/x/revoke", {}).status == 403


def test_p31_guessing_is_slowed_down_by_the_true_address(served: Served) -> None:
    """Another forged address with each guess does not help."""
    guess = {"token": "pnl1_x", "node_key": "U", "issued_utc_s": 1, "signature": "", "host_name": "h"}
    statuses = []
    for number in range(12):
        headers = {"X-Forwarded-For": f"10.0.0.{number}", "X-Real-IP": f"10.0.1.{number}"}
        reply = served.call("POST", "/join/v1/nodes", guess, key=None, headers=headers)
        statuses.append(reply.status)
    assert statuses[-1] == 429
    assert int(reply.headers["retry-after"]) >= 1
    assert set(statuses) == {400, 429}


def ask(port: int, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)
    try:
        connection.request(method, path, None if method == "GET" else b"{}", headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_p34_everything_listens_on_loopback_and_the_engine_is_locked(served: Served) -> None:
    assert served.installation.program is not None
    top = psutil.Process(served.installation.program.process.pid)
    listening = [
        (process.name(), each.laddr.ip)
        for process in [top, *top.children(recursive=True)]
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {address for _name, address in listening} <= LOOPBACK, listening
    agents = [each for each in processes_naming(str(served.installation.home)) if "agent" in each.cmdline()]
    assert agents
    for agent in agents:
        assert [each for each in agent.net_connections("tcp") if each.status == psutil.CONN_LISTEN] == []
    with served.client() as client:
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "a private word"}])
    locked_engine(served.engine(), "echo")
    assert "private" not in written(served.installation.home)


def locked_engine(engine: EngineSeen, model: str) -> None:
    """It answers nobody without this start's key, and tells nobody what it was asked."""
    assert engine.address in LOOPBACK
    body = {"model": model, "messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/echo/freeze"):
        for headers in ({}, {"authorization": "Bearer wrong"}):
            assert engine.call("POST", path, body, headers).status == 401, path
    for path in ("/v1/models", "/props", "/slots", "/metrics", "/echo/stats", "/"):
        reply = engine.call("GET", path)
        assert b"private" not in reply.body, path


@pytest.mark.model
def test_p34_the_real_engine_is_locked_too() -> None:
    cache = ModelCache(cache_folder(os.environ))
    if cache.find(SMOLLM2_135M) is None:
        pytest.skip("the small model is not in the cache: panal models fetch")
    with short_folder() as folder:
        served = Served(Installation(folder, environment={"PANAL_NODE__THREADS": "1"}))
        try:
            served.installation.start()
            model = served.installation.ready["models"][0]
            with served.client() as client:
                messages: list[Any] = [{"role": "user", "content": "a private word"}]
                client.chat.completions.create(model=model, messages=messages, max_tokens=2)
            agent = next(
                each for each in processes_naming(str(served.installation.home)) if "agent" in each.cmdline()
            )
            locked_engine(EngineSeen(agent.children()[0]), model)
            assert "private" not in written(served.installation.home)
        finally:
            served.stop()


def test_p35_a_key_stands_nowhere_but_in_the_answer_that_made_it(served: Served) -> None:
    """Create, use, wrong use, expire, revoke, in a query, as a model's name; all at log level debug."""
    marked = served.admin().post("/api/v1/keys", {"name": "marked", "new_principal": "somebody"})
    short = served.admin().post("/api/v1/keys", {"name": "short", "life_s": 1})
    keys = [marked["secret"], short["secret"]]
    key = keys[0]
    until(lambda: served.call("GET", "/v1/models", key=key).status == 200, 5.0, "the key is known")
    answers: list[bytes] = []

    def note(method: str, path: str, body: Any = None, **more: Any) -> int:
        reply = served.call(method, path, body, **more)
        answers.append(reply.body + repr(reply.headers).encode())
        return reply.status

    chat = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
    assert note("POST", "/v1/chat/completions", chat, key=key) == 200
    assert note("POST", "/v1/chat/completions", chat | {"stream": True}, key=key) == 200
    assert note("POST", "/v1/chat/completions", chat | {"api_key": key}, key=key) == 400
    assert note("POST", "/v1/chat/completions", b"{" + key.encode(), key=key) == 400
    assert note("POST", "/v1/chat/completions", chat | {"model": key}, key=key) == 400
    assert note("POST", "/v1/chat/completions", chat | {"x_test": key}, key=key) == 200
    assert note("POST", "/v1/embeddings", {"model": "echo", "input": "x", "encoding_format": key}) == 400
    assert note("GET", f"/v1/models/{key}", key=key) == 404
    assert note("GET", f"/v1/models?api_key={key}", key=None) == 401
    assert note("GET", f"/{key}", key=None) == 404
    assert note("GET", f"/api/v1/nodes?key={key}", key=key) == 403
    assert note("POST", "/api/v1/keys", {"name": key, "role": key}, key=key) == 400
    assert note("GET", "/api/v1/keys", key=key) == 200
    assert note("GET", f"/api/v1/usage?model={key}", key=key) == 200
    assert note("DELETE", f"/api/v1/keys/{key}", key=key) == 404
    assert note("POST", "/join/v1/nodes", {"token": key}, key=None) >= 400
    wrong = [key[:-1] + ("a" if key[-1] != "a" else "b"), key + "x", key.upper(), "sk-panal-", "x" * 300]
    texts = set()

    def unauthorised(given: str) -> None:
        reply = served.call("POST", "/v1/chat/completions", chat, key=given)
        assert reply.status == 401
        answers.append(reply.body)
        texts.add((reply.error["message"], reply.error["type"], reply.error["code"], reply.error["param"]))

    for each in wrong:
        unauthorised(each)
    until(lambda: served.call("GET", "/v1/models", key=keys[1]).status == 401, 5.0, "the short key expired")
    unauthorised(keys[1])
    served.admin().delete(f"/api/v1/keys/{marked['view']['id']}")
    until(lambda: served.call("GET", "/v1/models", key=key).status == 401, 5.0, "the key is revoked")
    unauthorised(key)
    assert len(texts) == 1, "unknown, malformed, expired and revoked keys are told the same"
    with served.client(key) as client, pytest.raises(openai.AuthenticationError) as told:
        client.models.list()
    answers.append(told.value.message.encode())
    answers.append(served.metrics().encode())
    listed = [f"/api/v1/{name}" for name in ("keys", "audit", "usage", "nodes", "tokens")]
    answers += [str(served.admin().get(path, limit=1000)).encode() for path in listed]
    until(lambda: served.gauge("panal_requests_in_flight") == 0.0, 5.0, "everything ended")
    places = {
        str(file.relative_to(served.installation.home)): file for file in files(served.installation.home)
    }
    assert any(name.endswith("panal.db") for name in places)
    log = next(file for name, file in places.items() if name.endswith("gateway.log"))
    assert '"level":"debug"' in log.read_text()
    for secret in keys:
        for form in forms(secret):
            for answer in answers:
                assert form not in answer, answer[:500]
            for name, file in places.items():
                assert form not in file.read_bytes(), f"{form!r} stands in {name}"


def forms(secret: str) -> list[bytes]:
    """A key's text, most of it, and its plain hash in every usual writing."""
    digest = hashlib.sha256(secret.encode())
    bare = hashlib.sha256(secret.removeprefix("sk-panal-").encode())
    found = [secret.encode(), secret[-24:].encode(), secret[9:33].encode()]
    for each in (digest, bare):
        found += [each.digest(), each.hexdigest().encode(), base64.b64encode(each.digest())]
    return found


def files(home: Path) -> list[Path]:
    """What the installation wrote, but for the folder of its own admin key's file."""
    return [file for file in home.rglob("*") if file.is_file()]


def written(home: Path) -> str:
    """All logs and the database as one text."""
    return "".join(file.read_bytes().decode("latin-1") for file in files(home))


def test_p34_the_network_door_has_a_lock_of_its_own(served: Served) -> None:
    """HTTPS shows the same door, and the bus lets nobody in without a credential."""
    context = ssl.create_default_context(cafile=str(served.installation.ca_file))
    port = int(served.installation.environment["PANAL_GATEWAY__HTTPS_PORT"])
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10.0, context=context)
    try:
        for path in ("/v1/models", "/metrics", "/api/v1/nodes"):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 401
            assert b"invalid_api_key" in answer.read()
    finally:
        connection.close()
