"""The message that begins an attempt, and the parts of a large body that follow it."""

from panal.core.ids import GatewayId
from panal.core.requests import InferenceRequest
from panal.dispatch.limits import Limits
from panal.protocol.messages import MESSAGE_BYTES_MAX, BodyPart, Emitted, RunAttempt, Seam
from panal.scheduling.replicas import ReplicaView

BODY_PART_BYTES = MESSAGE_BYTES_MAX - 32 * 1024


def run_message(
    request: InferenceRequest,
    replica: ReplicaView,
    name: str,
    gateway: GatewayId,
    limits: Limits,
    *,
    deadline_s: float,
    cache_salt: str,
    traceparent: str,
    emitted: Emitted | None,
    seam: Seam | None,
) -> tuple[RunAttempt, list[BodyPart]]:
    """``deadline_s``: what is left of the request's time; ``emitted``: what earlier attempts gave;
    ``traceparent``: of this attempt.
    """
    body = request.body
    pieces = [body[at : at + BODY_PART_BYTES] for at in range(0, len(body), BODY_PART_BYTES)] or [b""]
    run = RunAttempt(
        attempt=name,
        gateway=gateway,
        instance=replica.instance,
        replica=replica.reported_id,
        response_id=request.response_id,
        created_utc_s=request.created_utc_s,
        route=request.route,
        model=request.model,
        stream=request.stream,
        include_usage=request.include_usage,
        tenant=request.principal.tenant_id,
        project=request.principal.project_id,
        principal=request.principal.principal_id,
        data_class=int(request.data_class),
        residency=sorted(request.residency),
        deadline_s=deadline_s,
        first_token_s_max=limits.first_token_s_max,
        between_tokens_s_max=limits.between_tokens_s_max,
        traceparent=traceparent,
        cache_salt=cache_salt,
        parts=len(pieces),
        body=pieces[0],
        emitted=emitted,
        hold=replica.node_class.owned and not _could_go_on(request, replica),
        hold_bytes_max=limits.hold_bytes_max,
        seam=seam,
        tools_whole=request.tools_whole,
    )
    parts = [
        BodyPart(attempt=name, number=number, body=piece) for number, piece in enumerate(pieces[1:], start=2)
    ]
    return run, parts


def _could_go_on(request: InferenceRequest, replica: ReplicaView) -> bool:
    """Whether this answer could be continued elsewhere if the node left in the middle of it."""
    return request.resumable and replica.can_continue(tools=request.tools)
