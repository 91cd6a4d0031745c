"""What an answer must look like: fixed before the first token."""

from dataclasses import dataclass
from typing import Any

from panal.core.errors import BadRequest
from panal.core.requests import Route
from panal.node.stops import STOPS_MAX, stop_list
from panal.protocol.messages import HOLD_BYTES_MAX, Emitted, RunAttempt, Seam

Json = dict[str, Any]

TOOL_BUFFERING = "tool_buffering"
NOT_PLAIN = ("tools", "functions", "logprobs", "best_of", "echo", "include_stop_str_in_output")
"""Fields with which an answer is more than plain text, so that stop strings are the engine's business."""


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """One answer. ``stops`` are those that the agent looks for; ``hold``: see RunAttempt."""

    route: Route
    response_id: str
    created_utc_s: int
    model: str
    stream: bool
    include_usage: bool
    emitted: Emitted | None = None
    stops: tuple[str, ...] = ()
    hold: bool = False
    hold_bytes_max: int = HOLD_BYTES_MAX
    tools_whole: bool = False
    """Hold an answer back from its first tool call on, until it is complete."""
    seam: Seam | None = None
    prompt_characters: int = 0


def plan_of(run: RunAttempt, body: Json, *, agent_stops: bool) -> AnswerPlan:
    """The plan of an attempt. ``agent_stops``: the engine's ids must stay in step with its text.

    Raises BadRequest for an unknown route.
    """
    try:
        route = Route(run.route)
    except ValueError as error:
        raise BadRequest(f"unknown route {run.route!r}") from error
    stops = stop_list(body.get("stop"))
    if not (agent_stops and is_plain_text(body) and len(stops) <= STOPS_MAX):
        stops = ()
    return AnswerPlan(
        route=route,
        response_id=run.response_id,
        created_utc_s=run.created_utc_s,
        model=run.model,
        stream=run.stream,
        include_usage=run.include_usage,
        emitted=run.emitted,
        stops=stops,
        hold=run.hold,
        hold_bytes_max=run.hold_bytes_max,
        tools_whole=run.tools_whole or body.get(TOOL_BUFFERING) == "whole",
        seam=run.seam,
        prompt_characters=len(run.body),
    )


def is_plain_text(body: Json) -> bool:
    """Whether the answer is one text and nothing else."""
    if any(body.get(name) for name in NOT_PLAIN):
        return False
    return body.get("n") in (None, 1)


def engine_body(plan: AnswerPlan, body: Json) -> Json:
    """The client's body without panal's own field, and without the stop strings that the agent looks for."""
    ours = {TOOL_BUFFERING, "stop"} if plan.stops else {TOOL_BUFFERING}
    if ours.isdisjoint(body):
        return body
    return {name: value for name, value in body.items() if name not in ours}
