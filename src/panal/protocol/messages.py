"""Every message on the bus (DESIGN section 4, version 1), as MessagePack maps.

Fields are additive: new ones get a default, unknown ones are ignored, none changes its meaning.
tests/unit/protocol holds golden bytes of every message, decoded for ever.
"""

from typing import Any

import msgspec

PROTOCOL_VERSION = 1

MESSAGE_BYTES_MAX = 256 * 1024
"""Largest message that panal sends; larger bodies travel in parts."""

HOLD_BYTES_MAX = 1024 * 1024
"""What a node holds back of an answer where the gateway names no limit."""

UNACKNOWLEDGED_BYTES_MAX = 256 * 1024
"""Bytes of one attempt that an agent may have sent without an acknowledgement."""


class Message(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Base of all messages: maps, defaults left out, unknown fields ignored."""


# --- down: gateway or controller to node ------------------------------------------------------------


class Emitted(Message, kw_only=True):
    """What earlier attempts of a request already gave the client.

    ``token_ids`` is None where some id is unknown; ``text`` is always whole.
    """

    text: str = ""
    token_ids: list[int] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    role_sent: bool = False


class Seam(Message, kw_only=True):
    """How often the answer went on elsewhere before this attempt, and the nodes that made it so far."""

    resumes: int = 0
    nodes: list[str] = []


class RunAttempt(Message, kw_only=True):
    """Run this request on this replica. ``attempt`` is ``<request id>.<number from 1>``."""

    attempt: str
    gateway: str
    instance: str
    replica: str
    response_id: str
    created_utc_s: int
    route: str
    model: str
    stream: bool
    include_usage: bool
    tenant: str
    project: str
    principal: str
    data_class: int
    residency: list[str] = []
    deadline_s: float
    """Seconds left of the request's deadline when this was sent."""
    first_token_s_max: float
    between_tokens_s_max: float
    traceparent: str = ""
    cache_salt: str = ""
    parts: int = 1
    """How many pieces the body comes in; the first is ``body``, the others are BodyPart."""
    body: bytes
    emitted: Emitted | None = None
    hold: bool = False
    """Send nothing of the answer until it is complete, so that a restart stays unseen."""
    hold_bytes_max: int = HOLD_BYTES_MAX
    """More than this is not held back: it goes out, and the answer can then not be restarted unseen."""
    seam: Seam | None = None
    """What the usage object shall say of earlier attempts; None where nobody asked."""


class BodyPart(Message, kw_only=True):
    """Piece ``number`` (from 2) of a large body."""

    attempt: str
    number: int
    body: bytes


class Acknowledge(Message, kw_only=True):
    """All bytes of ``data`` up to this total were taken by the client's socket."""

    attempt: str
    data_bytes: int


class Cancel(Message, kw_only=True):
    """Stop at once and free the engine's slot. ``reason`` is a word for the log."""

    attempt: str
    reason: str


class Present(Message, kw_only=True):
    """Each second from a gateway to a node on which it follows attempts: it lives, and these are they.

    It leaves on the connection that attempts and cancels leave on, so their order holds. Attempts that the
    node does not know it answers with a frame out of number; those that are not named it ends, unless
    ``partial``: then others may run as well.
    """

    gateway: str
    instance: str
    attempts: list[str] = []
    partial: bool = False


class Instruction(Message, kw_only=True):
    """From the controller to one instance of a node (empty: to whichever hears it).

    ``verb``: accept | refuse | credential | cordon | uncordon | drain | stop | counts_seen | wake
    ``term``: in which the sender leads; a node that heard a higher one ignores it. 0: from before terms, or
    of no term, as with ``wake``.
    """

    id: str
    verb: str
    instance: str = ""
    reason: str = ""
    credential: str = ""
    attempts: list[str] = []
    term: int = 0
    macs: list[str] = []
    """Of ``wake``: hardware addresses of sleeping neighbours. Where the packets go the node knows itself."""


# --- up: node to gateway or controller --------------------------------------------------------------


class TokenUsage(Message, kw_only=True):
    """Tokens as shown to the client: the original prompt once, all that was made so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False


class WireError(Message, kw_only=True):
    """Why an attempt ended without an answer.

    ``kind``: caller (pass ``status`` and ``body`` on, retry nowhere) | refused | leaving | failed | timeout.
    """

    kind: str
    message: str
    code: str = ""
    status: int = 0
    body: bytes = b""


class Event(Message, kw_only=True):
    """A step of an attempt. ``data`` is final client bytes; the rest is the gateway's bookkeeping."""

    data: bytes = b""
    text: str = ""
    token_ids: list[int] | None = None
    """Ids of exactly ``text``; None where the engine gives none."""
    tokens: int = 0
    """How many tokens this event stands for, known or counted."""
    role: bool = False
    """The client has its role chunk now."""
    opaque: bool = False
    """Something other than text went out (a tool call, reasoning): text alone cannot continue it."""
    finish: str | None = None
    usage: TokenUsage | None = None
    error: WireError | None = None
    leaving: bool = False
    """The node gives the machine back: go on elsewhere now; frames stop within the grace."""

    @property
    def last(self) -> bool:
        """Whether nothing comes after this event."""
        return self.finish is not None or self.error is not None


class Frame(Message, kw_only=True):
    """Events of one attempt. ``number`` counts frames of the attempt from 0 without a gap."""

    attempt: str
    number: int
    events: list[Event]


class Frames(Message, kw_only=True):
    """Frames of several attempts for one gateway, from one turn of the agent's event loop."""

    frames: list[Frame]


class ReplicaReport(Message, kw_only=True):
    """One engine serving one model, and how it is doing.

    Times are measured on this node at load; 0 means not measured yet.
    ``resume``: token_ids | message | none - how an answer of another replica can be continued here.
    ``twin`` is equal for replicas that may continue each other: digest of weights, template, tokenizer.
    """

    replica: str
    model: str
    engine: str
    twin: str = ""
    resume: str = "none"
    routes: list[str] = []
    context_tokens: int = 0
    slots: int = 1
    running: int = 0
    waiting: int = 0
    pending_prefill_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_s_per_token: float = 0.0
    healthy: bool = True
    note: str = ""
    continues_messages: bool = False
    """Whether the engine's chat route continues an assistant message that is left open."""
    gpu: str = ""
    """UUID of the GPU that it is on; empty: the processor."""
    load_s: float = 0.0
    memory_bytes: int = 0
    """What it held of the GPU's memory after its load; 0 means not known."""


class GpuReport(Message, kw_only=True):
    """One GPU of a node. None means that its driver does not tell, or that the node keeps it to itself:
    what changes with use is told only while the node takes work. Nothing of any process is in it.

    ``energy_j`` only grows while the driver stays loaded; ``throttle`` holds words for what slows it down.
    """

    uuid: str
    vendor: str = ""
    name: str = ""
    driver: str = ""
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    busy_share: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    throttle: list[str] | None = None
    lost: bool = False


class Heartbeat(Message, kw_only=True):
    """Sent each 0.5 s while serving, else each second, and at once on a change of state."""

    version: int = PROTOCOL_VERSION
    node: str
    instance: str
    sequence: int
    state: str
    reason: str = ""
    """Coarse and free of personal facts, such as 'in use by its owner'."""
    agent_version: str = ""
    replicas: list[ReplicaReport] = []
    hazards_per_h: list[float] = []
    """How often its owner may come, an hour, in this hour and the next ones: learnt, and rounded."""
    gpus: list[GpuReport] = []


class AttemptCounts(Message, kw_only=True):
    """What a node really made in one attempt; kept and sent again until the controller has seen it."""

    attempt: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    duration_s: float
    outcome: str


class YieldReport(Message, kw_only=True):
    """One yield and its phases in seconds after the owner was seen."""

    no_new_work_s: float
    handed_over_s: float
    engine_gone_s: float
    memory_back_s: float
    attempts: int
    kept: bool = False
    """The owner allows the idle engine to stay in memory for a while: it is not back yet."""


class Report(Message, kw_only=True):
    """From a node to the controller: several kinds of news in one message, each optional."""

    node: str
    instance: str
    instruction: str = ""
    """Id of an instruction that was carried out."""
    renew: bool = False
    """Asks for a fresh credential; the subject proves the key."""
    counts: list[AttemptCounts] = []
    yields: list[YieldReport] = []
    wake: list[str] | None = None
    """Hardware addresses by which this node may be woken; empty: it must not be. None: not told here."""
    facts: dict[str, Any] = {}
