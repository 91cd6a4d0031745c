"""Who was refused is in the audit log: callers without the right, wrong keys, bad joins; and no secret."""

import json
import secrets
from typing import Any

from tests.support.asking import say, wire
from tests.support.installation import until
from tests.support.served import Served


def events(served: Served) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = served.admin().get("/api/v1/audit", limit=1000)["items"]
    return [{**each, **json.loads(each["details"])} for each in items if each["outcome"] == "refused"]


def one(served: Served, **wanted: Any) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        return [each for each in events(served) if wanted.items() <= each.items()]

    rows: list[dict[str, Any]] = until(found, 10.0, f"an event {wanted}")
    assert len(rows) == 1
    return rows[0]


def test_a_user_on_an_admins_route_is_named_with_the_route(served: Served) -> None:
    reply = served.call("POST", "/api/v1/tokens", {"site": "secret place"})
    assert reply.status == 403
    event = one(served, action="api.call", target="POST /api/v1/tokens")
    (key,) = [k for k in served.admin().get("/api/v1/keys")["items"] if k["id"] == event["key"]]
    assert key["principal"] == event["principal"]
    assert (event["peer"], event["count"], event["reason"]) == ("127.0.0.1", 1, "not_allowed")


def test_wrong_keys_of_one_address_are_one_row_a_minute_on_all_routes(served: Served) -> None:
    wrong = ["sk-panal-" + secrets.token_hex(24) for _ in range(30)]
    for key in wrong:
        served.call("GET", "/api/v1/keys", key=key)
        served.call("POST", "/v1/chat/completions", wire(say("x")), key=key)
    served.call("GET", "/api/v1/keys", key=None)
    until(lambda: counted(served, "key.use") >= 1, 10.0, "it is told")
    assert sum(1 for each in events(served) if each["action"] == "key.use") <= 2
    text = json.dumps(served.admin().get("/api/v1/audit", limit=1000))
    assert not any(key[9:] in text for key in wrong)


def test_a_bad_join_is_there_and_its_token_is_not(served: Served) -> None:
    token = f"pnl1_{'a' * 10}_{'b' * 32}_{'c' * 32}"
    body = {"token": token, "node_key": "U" + "A" * 55, "issued_utc_s": 1, "signature": "", "host_name": "h"}
    reply = served.call("POST", "/join/v1/nodes", body, key=None)
    assert reply.status in (400, 403)
    event = one(served, action="node.join")
    assert (event["principal"], event["target"], event["peer"]) == ("", "", "127.0.0.1")
    assert "b" * 32 not in json.dumps(event)
    assert served.admin().get("/api/v1/audit/verify")["whole"]


def counted(served: Served, action: str) -> int:
    return sum(each["count"] for each in events(served) if each["action"] == action)
