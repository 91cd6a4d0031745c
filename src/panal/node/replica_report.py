"""What the heartbeat says of the replica."""

from panal.core.ids import ReplicaId
from panal.node.attempts import Attempts
from panal.node.engine_keeper import EngineKeeper
from panal.node.engines.engine import EngineFacts
from panal.node.gpus import NodeGpus
from panal.protocol.messages import ReplicaReport

NOTE_CHARACTERS_MAX = 800
"""A note may name every card of a machine."""


def replica_report(
    replica: ReplicaId,
    facts: EngineFacts,
    attempts: Attempts,
    keeper: EngineKeeper,
    gpus: NodeGpus | None,
    *,
    gpu_trouble: str,
) -> ReplicaReport:
    """The replica now. ``gpu_trouble``: why its GPU cannot be used, empty when it can."""
    report = ReplicaReport(
        replica=replica,
        model=facts.model,
        engine=facts.kind,
        twin=facts.twin,
        resume=facts.resume.value,
        routes=[route.value for route in facts.routes],
        context_tokens=facts.context_tokens,
        slots=attempts.slots,
        running=attempts.running,
        waiting=attempts.waiting,
        pending_prefill_tokens=attempts.pending_prefill_tokens,
        prefill_tokens_per_s=round(attempts.speeds.prefill_tokens_per_s, 3),
        decode_s_per_token=round(attempts.speeds.decode_s_per_token, 6),
        healthy=keeper.on and keeper.healthy and not gpu_trouble,
        note=_note(keeper, gpus)[:NOTE_CHARACTERS_MAX],
        continues_messages=facts.continues_messages,
    )
    if gpus is not None:
        report.gpu = gpus.placed
        report.load_s = gpus.record.load_s
        report.memory_bytes = gpus.record.memory_bytes
    return report


def _note(keeper: EngineKeeper, gpus: NodeGpus | None) -> str:
    if keeper.problem or keeper.postponed is not None:
        return keeper.problem or str(keeper.postponed)
    return gpus.note() if gpus is not None else ""
