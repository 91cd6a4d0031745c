"""How a machine becomes a node, and how a node gets a fresh credential (see ``panal.protocol.joining``)."""

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass

from panal.core.clock import Clock
from panal.core.errors import BadRequest, CallerError, CapacityError, Conflict, NotAllowed, PanalError
from panal.core.ids import ApiKeyId, IdSource, NodeId, NodeKey
from panal.core.nodes import Membership
from panal.core.principals import Principal, Role
from panal.core.records import JoinTokenRecord, NodeRecord, utc_us
from panal.identity.attempt_limit import FailureLimit
from panal.identity.join_tokens import same_secret, why_unusable
from panal.identity.refusals import Refusal
from panal.identity.seams import Advertised, CredentialIssuer, EnrolmentStore, EnrolmentTransaction
from panal.protocol.joining import (
    SIGNATURE_AGE_S_MAX,
    Admission,
    CredentialRequest,
    JoinRequest,
    JoinToken,
    signed_text,
)

CREDENTIAL_S = 3600.0

_NODE_KEY = re.compile(r"U[A-Z2-7]{55}")
_MACHINE = re.compile(r"[0-9a-f]{64}|")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")

VerifySignature = Callable[[NodeKey, bytes, bytes], bool]
"""(public key, what was signed, signature) -> whether that key signed it. Must not raise."""


@dataclass(frozen=True, slots=True)
class _Admitted:
    node: NodeRecord
    anew: bool


@dataclass(slots=True)
class _Trial:
    """What is known of a request by the time it is refused; a token only once its secret was right."""

    target: str = ""
    on_behalf_of: Principal | None = None


class Enrolment:
    """The server's side of joining. ``advertised`` is read at each answer, since addresses may change."""

    def __init__(
        self,
        store: EnrolmentStore,
        issuer: CredentialIssuer,
        verify: VerifySignature,
        advertised: Callable[[], Advertised],
        *,
        ids: IdSource,
        clock: Clock,
        notify: Callable[[], None],
        credential_s: float = CREDENTIAL_S,
        refused: Callable[[Refusal], None] = lambda _refusal: None,
    ) -> None:
        """``refused`` hears of each refusal; it must neither wait nor raise."""
        self._credential_s = credential_s
        self._store = store
        self._issuer = issuer
        self._verify = verify
        self._advertised = advertised
        self._ids = ids
        self._clock = clock
        self._notify = notify
        self._limit = FailureLimit(clock)
        self._refused = refused

    async def admit(self, request: JoinRequest, peer_address: str) -> Admission:
        """Turns the machine that holds a good token into a node.

        Asked again with the same key and token (its answer was lost), it answers the same and uses
        nothing up. Raises CapacityError after ten failures a minute from one address, BadRequest,
        NotAllowed (bad token or signature), Conflict (this key is enrolled already), StoreError.
        """
        trial = _Trial()
        try:
            self._limit.check(peer_address)
            token = JoinToken.parse(request.token)
            self._check_join(request, token)
            admitted = await self._admit(request, token, trial)
        except (CallerError, CapacityError) as error:
            self._note_refusal("node.join", error, peer_address, trial)
            raise
        if admitted.anew:
            self._notify()
        return self._admission(admitted.node)

    async def fresh_credential(self, request: CredentialRequest, peer_address: str) -> Admission:
        """A new credential for a node whose old one ran out; empty while the node awaits approval.

        Raises CapacityError as above, BadRequest, NotAllowed (unknown or revoked node, replaced key, bad
        or stale signature), StoreError.
        """
        trial = _Trial()
        try:
            self._limit.check(peer_address)
            self._check_signature("credential", request.node, request)
            async with self._store.reading() as tx:
                node = await tx.nodes.get(NodeId(request.node))
            if node is None or node.key != request.node_key:
                raise NotAllowed("This node is not known here under this key. Join again with a new token.")
            trial.target = node.node_id
            _refuse_revoked(node)
        except (CallerError, CapacityError) as error:
            self._note_refusal("node.credential", error, peer_address, trial)
            raise
        return self._admission(node)

    def _note_refusal(self, action: str, error: PanalError, peer_address: str, trial: _Trial) -> None:
        if isinstance(error, CallerError):
            self._limit.note_failure(peer_address)
        self._refused(
            Refusal(action, error.code, peer_address, trial.target, trial.on_behalf_of, error.message)
        )

    async def _admit(self, request: JoinRequest, token: JoinToken, trial: _Trial) -> _Admitted:
        now_utc_us = utc_us(self._clock)
        async with self._store.transaction() as tx:
            record = await tx.join_tokens.by_public_id(token.id)
            if not same_secret(token, record) or record is None:
                raise NotAllowed("This join token is not known here. Make one with 'panal tokens create'.")
            trial.target, trial.on_behalf_of = record.token_id, _maker_of(record)
            known = await tx.nodes.by_key(NodeKey(request.node_key))
            if known is not None:
                return _Admitted(_answer_again(known, request, record), anew=False)
            reason = why_unusable(record, now_utc_us)
            if reason is None and not await tx.join_tokens.take_use(record.token_id, now_utc_us):
                reason = "This join token has been used up."
            if reason is not None:
                raise NotAllowed(f"{reason} Make a new one with 'panal tokens create'.")
            node = await tx.nodes.admit(self._new_node(request, record, now_utc_us))
            await self._audit(tx, node, record, now_utc_us)
        return _Admitted(node, anew=True)

    def _new_node(self, request: JoinRequest, record: JoinTokenRecord, now_utc_us: int) -> NodeRecord:
        return NodeRecord(
            node_id=self._ids.node(),
            tenant_id=record.tenant_id,
            project_id=record.project_id,
            name=plain_name(request.host_name),
            key=NodeKey(request.node_key),
            machine=request.machine,
            node_class=record.node_class,
            site=record.site,
            country=record.country,
            data_class=record.data_class,
            membership=Membership.PENDING if record.approve else Membership.ACTIVE,
            reason="awaits approval" if record.approve else "",
            token_id=record.token_id,
            joined_utc_us=now_utc_us,
        )

    async def _audit(
        self, tx: EnrolmentTransaction, node: NodeRecord, record: JoinTokenRecord, now_utc_us: int
    ) -> None:
        await tx.audit.append(
            event_id=self._ids.other("evt"),
            actor=_maker_of(record),
            action="node.join",
            target=node.node_id,
            now_utc_us=now_utc_us,
            details={"name": node.name, "token": record.token_id, "membership": node.membership.value},
        )

    def _check_join(self, request: JoinRequest, token: JoinToken) -> None:
        if _MACHINE.fullmatch(request.machine) is None:
            raise BadRequest("'machine' is 64 hexadecimal digits or empty.", param="machine")
        if request.protocol_version < 1:
            raise BadRequest("'protocol_version' must be at least 1.", param="protocol_version")
        if len(request.host_name) > 255:
            raise BadRequest("'host_name' is too long.", param="host_name")
        self._check_signature("join", token.id, request)

    def _check_signature(self, purpose: str, subject: str, request: JoinRequest | CredentialRequest) -> None:
        if _NODE_KEY.fullmatch(request.node_key) is None:
            raise BadRequest("'node_key' is not a node's public key.", param="node_key")
        age_s = self._clock.utc_seconds() - request.issued_utc_s
        if abs(age_s) > SIGNATURE_AGE_S_MAX:
            raise NotAllowed(
                f"The request was signed {abs(age_s):.0f} s {'ago' if age_s > 0 else 'in the future'}: "
                "set the clock of the machine right and try again."
            )
        signed = signed_text(purpose, subject, request.node_key, request.issued_utc_s)
        if not self._verify(NodeKey(request.node_key), signed, _signature_bytes(request.signature)):
            raise NotAllowed("The signature was not made by this node key.")

    def _admission(self, node: NodeRecord) -> Admission:
        credential = ""
        if node.membership is not Membership.PENDING:
            credential = self._issuer.node_credential(node.key, int(self._credential_s))
        advertised = self._advertised()
        return Admission(
            node=node.node_id,
            membership=node.membership.value,
            credential=credential,
            bus_urls=list(advertised.bus_urls),
            ca_pem=advertised.ca_pem,
            name=node.name,
            node_class=node.node_class.value,
            site=node.site,
            country=node.country,
            data_class=node.data_class.label,
        )


def _maker_of(record: JoinTokenRecord) -> Principal:
    """On whose behalf a token lets machines in."""
    return Principal(
        principal_id=record.created_by,
        tenant_id=record.tenant_id,
        project_id=record.project_id,
        role=Role.USER,
        key_id=ApiKeyId(""),
    )


def plain_name(host_name: str) -> str:
    """A host name as a node's name: lower case, without the domain, letters, digits and hyphens only."""
    first = host_name.strip().lower().partition(".")[0]
    return _NOT_IN_NAMES.sub("-", first).strip("-")[:63] or "node"


def _answer_again(known: NodeRecord, request: JoinRequest, record: JoinTokenRecord) -> NodeRecord:
    _refuse_revoked(known)
    if known.token_id != record.token_id or known.key != request.node_key:
        raise Conflict(
            f"This machine is enrolled already, as {known.name} ({known.node_id}). To go on with it, start "
            "the agent without a token. To enrol it anew, remove the agent's key file first; do so as well "
            "when this machine was copied from another one."
        )
    if known.machine != request.machine:
        raise Conflict(
            "This node key was enrolled by another machine. Remove the agent's key file here and join again."
        )
    return known


def _refuse_revoked(node: NodeRecord) -> None:
    if node.membership is Membership.REVOKED:
        raise NotAllowed(
            "This node was revoked. To let the machine in again, remove the agent's key file and join with a "
            "new token."
        )


def _signature_bytes(text: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 64:
        raise BadRequest("'signature' is not the base64 of 64 bytes.", param="signature")
    return raw
