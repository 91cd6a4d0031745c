"""What a node says of itself is believed within bounds only: beyond them a message is none."""

from typing import Any

import msgspec
import pytest

from panal.core.errors import ProtocolError
from panal.protocol.codec import Decoder
from panal.protocol.messages import (
    NODE_ADDRESSES_MAX,
    NODE_GPUS_MAX,
    NODE_HAZARDS_MAX,
    NODE_REPLICAS_MAX,
    Frames,
    Heartbeat,
    Report,
)

HEARTBEAT = {"node": "node_1", "instance": "ins_1", "sequence": 1, "state": "available"}
REPLICA = {"replica": "rpl_1", "model": "small", "engine": "echo"}
COUNTS = {
    "attempt": "req_1.1",
    "model": "small",
    "prompt_tokens": 1,
    "completion_tokens": 1,
    "duration_s": 1.0,
    "outcome": "complete",
}
NAN, INF = float("nan"), float("inf")


def heartbeat(**values: Any) -> Heartbeat:
    return Decoder(Heartbeat).decode(msgspec.msgpack.encode({**HEARTBEAT, **values}))


@pytest.mark.parametrize("name", ["prefill_tokens_per_s", "decode_s_per_token", "load_s"])
@pytest.mark.parametrize("value", [NAN, INF, -INF, -0.001, 1e300])
def test_a_speed_is_a_finite_number_from_zero_on(name: str, value: float) -> None:
    with pytest.raises(ProtocolError):
        heartbeat(replicas=[{**REPLICA, name: value}])


@pytest.mark.parametrize(
    "name", ["slots", "running", "waiting", "pending_prefill_tokens", "context_tokens", "memory_bytes"]
)
@pytest.mark.parametrize("value", [-1, 2**63])
def test_a_count_is_from_zero_on_and_fits_a_column(name: str, value: int) -> None:
    with pytest.raises(ProtocolError):
        heartbeat(replicas=[{**REPLICA, name: value}])


@pytest.mark.parametrize("name", ["model", "replica", "twin", "engine"])
@pytest.mark.parametrize("value", ["a\0b", "a\nb", "\u202eb", "\u200bb", "x" * 257])
def test_a_name_can_be_stored_and_shown(name: str, value: str) -> None:
    with pytest.raises(ProtocolError):
        heartbeat(replicas=[{**REPLICA, name: value}])


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": [REPLICA] * (NODE_REPLICAS_MAX + 1)},
        {"gpus": [{"uuid": "GPU-1"}] * (NODE_GPUS_MAX + 1)},
        {"hazards_per_h": [0.1] * (NODE_HAZARDS_MAX + 1)},
        {"hazards_per_h": [0.1, NAN]},
        {"hazards_per_h": [-1.0]},
        {"gpus": [{"uuid": "GPU-1", "temperature_c": NAN}]},
        {"gpus": [{"uuid": "GPU-1", "energy_j": INF}]},
        {"gpus": [{"uuid": "GPU-1", "memory_free_bytes": -1}]},
        {"instance": "x" * 300},
    ],
)
def test_lists_are_bounded_and_readings_finite(values: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        heartbeat(**values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"duration_s": NAN},
        {"duration_s": INF},
        {"prompt_tokens": 2**63},
        {"completion_tokens": -1},
        {"attempt": "req_1\0.1"},
        {"model": "a\0b"},
    ],
)
def test_counts_that_no_store_takes_are_no_report(wrong: dict[str, Any]) -> None:
    said = {"node": "node_1", "instance": "ins_1", "counts": [{**COUNTS, **wrong}]}
    with pytest.raises(ProtocolError):
        Decoder(Report).decode(msgspec.msgpack.encode(said))


@pytest.mark.parametrize("wake", [["00:11:22:33:44:55"] * (NODE_ADDRESSES_MAX + 1), ["0" * 300], ["a\0"]])
def test_a_nodes_addresses_are_few_and_short(wake: list[str]) -> None:
    with pytest.raises(ProtocolError):
        Decoder(Report).decode(msgspec.msgpack.encode({"node": "n", "instance": "i", "wake": wake}))


@pytest.mark.parametrize("token", [-1, 2**31, 2**64 - 1])
def test_a_token_id_is_one_that_a_vocabulary_can_have(token: int) -> None:
    said = {"frames": [{"attempt": "req_1.1", "number": 0, "events": [{"text": "x", "token_ids": [token]}]}]}
    with pytest.raises(ProtocolError):
        Decoder(Frames).decode(msgspec.msgpack.encode(said))


@pytest.mark.parametrize("usage", [{"prompt_tokens": -1}, {"completion_tokens": 2**40}])
def test_usage_that_nobody_could_have_made_is_no_frame(usage: dict[str, int]) -> None:
    said = {"frames": [{"attempt": "req_1.1", "number": 0, "events": [{"usage": usage}]}]}
    with pytest.raises(ProtocolError):
        Decoder(Frames).decode(msgspec.msgpack.encode(said))


def test_a_full_node_of_the_largest_kind_is_understood() -> None:
    card = {"uuid": "GPU-1", "temperature_c": -12.5, "busy_share": 1.0, "memory_total_bytes": 192 * 2**30}
    full = heartbeat(
        replicas=[{**REPLICA, "model": "Größe/模型-7B", "context_tokens": 10_000_000, "slots": 4096}] * 16,
        gpus=[card] * 16,
        hazards_per_h=[60.0] * 24,
        reason="the engine failed:\nout of memory",
    )
    assert (len(full.replicas), len(full.gpus), len(full.hazards_per_h)) == (16, 16, 24)
