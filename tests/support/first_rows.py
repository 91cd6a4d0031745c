"""A database of the first revision as a life leaves it: rows in every state, optional fields null and set.

Written as plain columns and never changed again, so that every later migration meets what it will meet.
"""

import json
from typing import Any

NOW_US = 1_800_000_000_000_000
TENANT = {"tenant_id": "tnt_default", "project_id": "prj_default"}
MEMBERSHIPS = ("pending", "active", "cordoned", "draining", "revoked")
OUTCOMES = ("complete", "cut", "client_gone", "failed", "refused")
ATTEMPT_OUTCOMES = ("complete", "handed_over", "lost", "failed", "refused", "timeout", "cancelled")


def rows() -> dict[str, list[dict[str, Any]]]:
    """Rows by table, in an order in which they can be inserted."""
    return {
        "principals": [
            {"principal_id": "prn_owner", **TENANT, "name": "", "disabled": False, "created_utc_us": NOW_US},
            {"principal_id": "prn_gone", **TENANT, "name": "ñ 🐝", "disabled": True, "created_utc_us": 0},
        ],
        "api_keys": [_key(number, state) for number, state in enumerate(_key_states())],
        "join_tokens": [
            _token(number, uses, revoked) for number, (uses, revoked) in enumerate(_token_states())
        ],
        "nodes": [_node(number, membership) for number, membership in enumerate(MEMBERSHIPS)],
        "node_keys": [
            {
                "node_key": f"{generation}{number}".rjust(56, "U"),
                "node_id": f"node_{number}",
                "since_utc_us": NOW_US,
                "until_utc_us": NOW_US if generation == "OLD" else None,
            }
            for number in range(len(MEMBERSHIPS))
            for generation in ("NEW", "OLD")
        ],
        "models": [
            {
                "tenant_id": "tnt_default",
                "name": name,
                "twin": twin,
                "first_seen_utc_us": 0,
                "last_seen_utc_us": NOW_US,
            }
            for name, twin in (("small", ""), ("ñ/large:q4", "small"))
        ],
        "usage_records": [_usage(number, outcome) for number, outcome in enumerate(OUTCOMES)],
        "contributions": [_contribution(number, outcome) for number, outcome in enumerate(ATTEMPT_OUTCOMES)],
        "audit_events": [_event()],
    }


def _key_states() -> list[dict[str, Any]]:
    nothing = {"expires_utc_us": None, "revoked_utc_us": None, "last_used_utc_us": None, "residency": ""}
    return [
        nothing,
        nothing | {"expires_utc_us": 1},
        nothing | {"revoked_utc_us": NOW_US, "last_used_utc_us": NOW_US},
        nothing | {"residency": "DE,ES"},
    ]


def _key(number: int, state: dict[str, Any]) -> dict[str, Any]:
    return {
        "key_id": f"key_{number}",
        **TENANT,
        "principal_id": "prn_owner" if number % 2 else "prn_gone",
        "name": "",
        "digest": bytes([number]) * 32,
        "shown": "",
        "role": "user",
        "data_class": number,
        "created_utc_us": NOW_US,
        **state,
    }


def _token_states() -> list[tuple[int, int | None]]:
    return [(1, None), (0, None), (3, NOW_US)]


def _token(number: int, uses: int, revoked: int | None) -> dict[str, Any]:
    return {
        "token_id": f"jtk_{number}",
        "public_id": f"abcdefgh{number}2",
        **TENANT,
        "created_by": "prn_owner",
        "digest": bytes(32),
        "uses_left": uses,
        "created_utc_us": NOW_US,
        "expires_utc_us": NOW_US,
        "node_class": "desktop",
        "site": "",
        "country": "",
        "data_class": 0,
        "approve": bool(number),
        "revoked_utc_us": revoked,
    }


def _node(number: int, membership: str) -> dict[str, Any]:
    return {
        "node_id": f"node_{number}",
        **TENANT,
        "name": f"desk{number}",
        "node_key": f"NEW{number}".rjust(56, "U"),
        "machine": "",
        "node_class": "desktop",
        "site": "",
        "country": "",
        "data_class": 1,
        "membership": membership,
        "reason": "",
        "token_id": "jtk_0",
        "joined_utc_us": NOW_US,
        "last_seen_utc_us": NOW_US if number % 2 else None,
    }


def _usage(number: int, outcome: str) -> dict[str, Any]:
    return {
        "request_id": f"req_{number}",
        **TENANT,
        "principal_id": "prn_owner",
        "key_id": "key_0",
        "model": "small",
        "route": "chat",
        "outcome": outcome,
        "error_code": "" if outcome == "complete" else "node_lost",
        "prompt_tokens": 2**40,
        "completion_tokens": 0,
        "cached_tokens": 0,
        "estimated": bool(number % 2),
        "partial": not number % 2,
        "attempts": number,
        "queued_us": 0,
        "first_token_us": None if number else 5,
        "total_us": 0,
        "created_utc_us": NOW_US + number,
    }


def _contribution(number: int, outcome: str) -> dict[str, Any]:
    return {
        "request_id": f"req_{number}",
        "attempt": 1,
        **TENANT,
        "principal_id": "prn_owner",
        "node_id": "node_9",
        "model": "small",
        "outcome": outcome,
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "useful_tokens": 0,
        "duration_us": 1,
        "confirmed": bool(number % 2),
        "created_utc_us": NOW_US,
    }


def _event() -> dict[str, Any]:
    return {
        "sequence": 1,
        "event_id": "evt_1",
        **TENANT,
        "principal_id": "prn_owner",
        "key_id": "key_0",
        "action": "node.cordon",
        "target": "node_2",
        "outcome": "done",
        "details": json.dumps({}),
        "created_utc_us": NOW_US,
        "previous": "0" * 64,
        "hash": "1" * 64,
    }
