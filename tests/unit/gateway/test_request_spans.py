"""What a finished request becomes in a trace."""

from typing import Any

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import AnswerCut, ModelNotFound, PanalError
from panal.core.ids import NodeId, RequestId
from panal.core.requests import Usage
from panal.dispatch.outcome import WARM_UP, AttemptLog, Finished
from panal.gateway.request_spans import RequestSpans
from panal.ledger.values import AttemptOutcome, Outcome
from panal.telemetry.traces import Span, read_traceparent, span_id_of
from tests.support.path import a_request

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENTS = f"00-{TRACE}-00f067aa0ba902b7-01"
SECRET = "a prompt that nobody may see"


def made(
    clock: ManualClock,
    attempts: list[AttemptLog],
    *,
    error: PanalError | None = None,
    traceparent: str = CLIENTS,
    ratio: float = 1.0,
    **more: Any,
) -> list[Span]:
    kept: list[Span] = []
    request = a_request(
        clock,
        request_id=RequestId("req_1"),
        traceparent=traceparent,
        body=f'{{"messages":"{SECRET}"}}'.encode(),
        **({"model": more.pop("model")} if "model" in more else {}),
    )
    RequestSpans(kept.extend, clock, ratio).ended(
        Finished(
            request=request,
            outcome=Outcome.COMPLETE if error is None else Outcome.FAILED,
            error=error,
            shown=Usage(7, 9),
            attempts=attempts,
            queued_s=0.5,
            first_token_s=1.0,
            total_s=4.0,
            **more,
        )
    )
    return kept


def log(number: int, opened_ago_s: float, duration_s: float, **more: Any) -> AttemptLog:
    now_s = ManualClock().monotonic_seconds()
    return AttemptLog(
        number,
        NodeId(f"node_{number}"),
        f"desk-{number}",
        tokens=3,
        duration_s=duration_s,
        opened_monotonic_s=now_s - opened_ago_s,
        **more,
    )


LOST: dict[str, Any] = {"outcome": AttemptOutcome.LOST, "cause": "node_lost"}


def test_request_admission_and_attempts_hang_together() -> None:
    clock = ManualClock()
    root, admission, first, second = made(clock, [log(1, 3.5, 1.5, **LOST), log(2, 2.0, 2.0)])
    assert {span.trace_id for span in (root, admission, first, second)} == {TRACE}
    assert root.parent_id == "00f067aa0ba902b7"
    assert {span.parent_id for span in (admission, first, second)} == {root.span_id}
    assert len({span.span_id for span in (root, admission, first, second)}) == 4
    assert root.name == "chat m"
    now_ns = int(clock.utc_seconds() * 1e9)
    seconds = [
        ((span.start_utc_ns - now_ns) / 1e9, (span.end_utc_ns - now_ns) / 1e9)
        for span in (root, admission, first, second)
    ]
    assert [pytest.approx(pair) for pair in [(-4, 0), (-4, -3.5), (-3.5, -2), (-2, 0)]] == seconds


def test_the_end_of_an_attempt_and_what_came_of_it_are_visible() -> None:
    root, _admission, first, second = made(
        ManualClock(), [log(1, 3.5, 1.5, **LOST), log(2, 2.0, 2.0, goes_on_after="node_lost")]
    )
    assert (first.error, first.attributes["error.type"]) == ("node_lost", "node_lost")
    assert second.error == root.error == ""
    assert [(link.span_id, link.attributes) for link in second.links] == [
        (first.span_id, {"panal.continues": "resume"})
    ]
    assert [event.name for event in root.events] == ["first token", "resume"]
    assert root.attributes["gen_ai.usage.input_tokens"] == 7
    assert root.attributes["gen_ai.usage.output_tokens"] == 9
    assert root.attributes["gen_ai.operation.name"] == "chat"
    assert root.attributes["gen_ai.request.model"] == "m"


def test_a_hand_over_is_no_error_and_a_restart_is_no_resume() -> None:
    leaving = {"outcome": AttemptOutcome.HANDED_OVER, "cause": "node_leaving"}
    root, _admission, first, warm_up, third = made(
        ManualClock(),
        [log(1, 3, 1, **leaving), log(2, 2, 1, warm_up=True), log(3, 1, 1, goes_on_after="node_leaving")],
    )
    assert first.error == ""
    assert warm_up.links[0].attributes == {"panal.continues": "warm_up"}
    assert third.links[0].attributes == {"panal.continues": "hand_over"}
    assert {each.links[0].span_id for each in (warm_up, third)} == {first.span_id}
    assert [event.name for event in root.events] == ["first token", "warm_up", "hand_over"]
    root, *_rest, second = made(ManualClock(), [log(1, 3, 1, **LOST), log(2, 2, 2)])
    assert second.links[0].attributes == {"panal.continues": "restart"}
    assert [event.name for event in root.events] == ["first token", "restart"]


def test_a_request_that_never_ran_shows_why_in_its_admission() -> None:
    refused = ModelNotFound("There is no such model.")
    root, admission = made(ManualClock(), [], error=refused, model=SECRET)
    assert root.error == admission.error == "model_not_found"
    assert SECRET not in repr(root) + repr(admission)


def test_neither_body_nor_principal_nor_key_is_in_a_span() -> None:
    spans = made(ManualClock(), [log(1, 3.5, 3.5)], error=AnswerCut("it broke"))
    text = repr(spans)
    assert SECRET not in text
    assert "key_test" not in text
    assert "prn_test" not in text
    assert spans[0].error == "answer_cut"


def test_what_the_client_does_not_want_recorded_is_not() -> None:
    assert made(ManualClock(), [log(1, 1, 1)], traceparent=CLIENTS[:-1] + "0") == []
    assert made(ManualClock(), [log(1, 1, 1)], traceparent="", ratio=0.0) == []
    assert made(ManualClock(), [log(1, 1, 1)], traceparent="")[0].parent_id == ""


def test_an_attempt_carries_its_own_span_as_parent() -> None:
    spans = RequestSpans(lambda _spans: None, ManualClock(), 1.0)
    request = a_request(ManualClock(), request_id=RequestId("req_1"), traceparent=CLIENTS)
    told = read_traceparent(spans.traceparent(request, "req_1.2"))
    assert told is not None
    assert (told.trace_id, told.parent_id, told.sampled) == (TRACE, span_id_of("req_1.2"), True)


def test_a_warm_up_that_did_its_work_is_no_error_and_one_that_failed_is() -> None:
    warm = log(1, 2, 1, warm_up=True, outcome=AttemptOutcome.CANCELLED, cause=WARM_UP)
    failed = log(2, 1, 1, warm_up=True, **LOST)
    _root, _admission, good, bad = made(ManualClock(), [warm, failed])
    assert good.error == "" and "error.type" not in good.attributes
    assert bad.error == bad.attributes["error.type"] == "node_lost"
