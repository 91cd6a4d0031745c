"""Rows for tests: sensible values, each field to be changed by name."""

from dataclasses import replace
from typing import Any

from msgspec import structs

from panal.core.ids import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    ApiKeyId,
    JoinTokenId,
    NodeId,
    NodeKey,
    PrincipalId,
    RequestId,
)
from panal.core.nodes import DataClass, Membership, NodeClass
from panal.core.principals import Role
from panal.core.records import ApiKeyRecord, JoinTokenRecord, NodeRecord
from panal.ledger.values import AttemptOutcome, Contribution, Outcome, Settlement, UsageRecord
from panal.store.principals import PrincipalRecord

NOW_US = 1_800_000_000_000_000
OWNER = PrincipalId("prn_owner")


def principal_row(**changes: Any) -> PrincipalRecord:
    record = PrincipalRecord(
        principal_id=OWNER,
        tenant_id=DEFAULT_TENANT,
        project_id=DEFAULT_PROJECT,
        name="owner",
        disabled=False,
        created_utc_us=NOW_US,
    )
    return replace(record, **changes)


def key_row(number: int = 1, **changes: Any) -> ApiKeyRecord:
    record = ApiKeyRecord(
        key_id=ApiKeyId(f"key_{number:04d}"),
        tenant_id=DEFAULT_TENANT,
        project_id=DEFAULT_PROJECT,
        principal_id=OWNER,
        name="a key",
        digest=number.to_bytes(32, "big"),
        shown="sk-panal-Ab3d...",
        role=Role.USER,
        data_class=DataClass.CONFIDENTIAL,
        residency=frozenset({"DE", "ES"}),
        created_utc_us=NOW_US,
    )
    return replace(record, **changes)


def token_row(number: int = 1, **changes: Any) -> JoinTokenRecord:
    record = JoinTokenRecord(
        token_id=JoinTokenId(f"jtk_{number:04d}"),
        public_id=f"abcdefgh{number:02d}".replace("0", "z").replace("1", "y"),
        tenant_id=DEFAULT_TENANT,
        project_id=DEFAULT_PROJECT,
        created_by=OWNER,
        digest=bytes(32),
        uses_left=1,
        created_utc_us=NOW_US,
        expires_utc_us=NOW_US + 3_600_000_000,
        node_class=NodeClass.WORKSTATION,
        site="Madrid",
        country="ES",
        data_class=DataClass.INTERNAL,
        approve=False,
    )
    return replace(record, **changes)


def node_key(number: int) -> NodeKey:
    digits = f"{number:05d}".translate(str.maketrans("01", "AB"))
    return NodeKey("U" + digits.rjust(55, "A").translate(str.maketrans("89", "YZ")))


def node_row(number: int = 1, **changes: Any) -> NodeRecord:
    record = NodeRecord(
        node_id=NodeId(f"node_{number:04d}"),
        tenant_id=DEFAULT_TENANT,
        project_id=DEFAULT_PROJECT,
        name="desk",
        key=node_key(number),
        machine="",
        node_class=NodeClass.DESKTOP,
        site="Madrid",
        country="ES",
        data_class=DataClass.INTERNAL,
        membership=Membership.ACTIVE,
        reason="",
        token_id=JoinTokenId("jtk_0001"),
        joined_utc_us=NOW_US,
    )
    return replace(record, **changes)


def usage_row(number: int = 1, **changes: Any) -> UsageRecord:
    record = UsageRecord(
        request_id=RequestId(f"req_{number:08d}"),
        tenant_id=DEFAULT_TENANT,
        project_id=DEFAULT_PROJECT,
        principal_id=OWNER,
        key_id=ApiKeyId("key_0001"),
        model="small",
        route="chat",
        outcome=Outcome.COMPLETE,
        error_code="",
        prompt_tokens=10,
        completion_tokens=20,
        cached_tokens=4,
        estimated=False,
        partial=False,
        attempts=1,
        queued_us=5,
        first_token_us=1_000,
        total_us=50_000,
        created_utc_us=NOW_US + number,
    )
    return structs.replace(record, **changes)


def contribution_row(number: int = 1, **changes: Any) -> Contribution:
    record = Contribution(
        request_id=RequestId(f"req_{number:08d}"),
        attempt=1,
        tenant_id=DEFAULT_TENANT,
        project_id=DEFAULT_PROJECT,
        principal_id=OWNER,
        node_id=NodeId("node_0001"),
        model="small",
        outcome=AttemptOutcome.COMPLETE,
        prompt_tokens=10,
        completion_tokens=20,
        useful_tokens=20,
        duration_us=49_000,
        created_utc_us=NOW_US + number,
    )
    return structs.replace(record, **changes)


def settlement_row(number: int = 1) -> Settlement:
    return Settlement(usage=usage_row(number), contributions=(contribution_row(number),))
