"""Every message on the bus (DESIGN section 4, version 1), as MessagePack maps.

Fields are additive: new ones get a default, unknown ones are ignored, none changes its meaning.
tests/unit/protocol holds golden bytes of every message, decoded for ever.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = 1

MESSAGE_BYTES_MAX = 256 * 1024
"""Largest message that panal sends; larger bodies travel in parts."""

HOLD_BYTES_MAX = 1024 * 1024
"""What a node holds back of an answer where the gateway names no limit."""

UNACKNOWLEDGED_BYTES_MAX = 256 * 1024
"""Bytes of one attempt that an agent may have sent without an acknowledgement."""


# What a node says of itself is believed only within these bounds: a message with anything beyond them is no
# message. Numbers are finite and fit into a column of the store; names can be stored and shown.

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Bytes = Annotated[int, Meta(ge=0, le=2**53)]
Amount = Annotated[float, Meta(ge=0.0, le=1e9)]
Reading = Annotated[float, Meta(ge=-1e15, le=1e15)]
Word = Annotated[str, Meta(max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e]*$")]
"""Without control characters and without marks that turn the direction of what is shown."""
Text = Annotated[str, Meta(max_length=4096)]

NODE_REPLICAS_MAX = 64
NODE_GPUS_MAX = 64
NODE_HAZARDS_MAX = 168
NODE_ADDRESSES_MAX = 64


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
    tools_whole: bool = False
    """Hold the answer back from its first tool call on, until it is complete."""


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

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count = 0
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
    token_ids: list[Count] | None = None
    """Ids of exactly ``text``; None where the engine gives none."""
    tokens: Count = 0
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

    replica: Word
    model: Word
    engine: Word
    twin: Word = ""
    resume: str = "none"
    routes: list[str] = []
    context_tokens: Count = 0
    slots: Count = 1
    running: Count = 0
    waiting: Count = 0
    pending_prefill_tokens: Count = 0
    prefill_tokens_per_s: Amount = 0.0
    decode_s_per_token: Amount = 0.0
    healthy: bool = True
    note: Text = ""
    continues_messages: bool = False
    """Whether the engine's chat route continues an assistant message that is left open."""
    gpu: Word = ""
    """UUID of the GPU that it is on; empty: the processor."""
    load_s: Amount = 0.0
    memory_bytes: Bytes = 0
    """What it held of the GPU's memory after its load; 0 means not known."""


class GpuReport(Message, kw_only=True):
    """One GPU of a node. None means that its driver does not tell, or that the node keeps it to itself:
    what changes with use is told only while the node takes work. Nothing of any process is in it.

    ``energy_j`` only grows while the driver stays loaded; ``throttle`` holds words for what slows it down.
    """

    uuid: Word
    vendor: Word = ""
    name: Word = ""
    driver: Word = ""
    memory_total_bytes: Bytes | None = None
    memory_free_bytes: Bytes | None = None
    busy_share: Reading | None = None
    temperature_c: Reading | None = None
    power_w: Reading | None = None
    energy_j: Reading | None = None
    throttle: list[Word] | None = None
    lost: bool = False


class Heartbeat(Message, kw_only=True):
    """Sent each 0.5 s while serving, else each second, and at once on a change of state."""

    version: int = PROTOCOL_VERSION
    node: Word
    instance: Word
    sequence: int
    state: Word
    reason: Text = ""
    """Coarse and free of personal facts, such as 'in use by its owner'."""
    agent_version: Word = ""
    replicas: Annotated[list[ReplicaReport], Meta(max_length=NODE_REPLICAS_MAX)] = []
    hazards_per_h: Annotated[list[Amount], Meta(max_length=NODE_HAZARDS_MAX)] = []
    """How often its owner may come, an hour, in this hour and the next ones: learnt, and rounded."""
    gpus: Annotated[list[GpuReport], Meta(max_length=NODE_GPUS_MAX)] = []


class AttemptCounts(Message, kw_only=True):
    """What a node really made in one attempt; kept and sent again until the controller has seen it."""

    attempt: Word
    model: Word
    prompt_tokens: Count
    completion_tokens: Count
    duration_s: Amount
    outcome: Word


class YieldReport(Message, kw_only=True):
    """One yield and its phases in seconds after the owner was seen."""

    no_new_work_s: Reading
    handed_over_s: Reading
    engine_gone_s: Reading
    memory_back_s: Reading
    attempts: int
    kept: bool = False
    """The owner allows the idle engine to stay in memory for a while: it is not back yet."""


class Report(Message, kw_only=True):
    """From a node to the controller: several kinds of news in one message, each optional."""

    node: Word
    instance: Word
    instruction: Word = ""
    """Id of an instruction that was carried out."""
    renew: bool = False
    """Asks for a fresh credential; the subject proves the key."""
    counts: list[AttemptCounts] = []
    yields: list[YieldReport] = []
    wake: Annotated[list[Word], Meta(max_length=NODE_ADDRESSES_MAX)] | None = None
    """Hardware addresses by which this node may be woken; empty: it must not be. None: not told here."""
    facts: dict[str, Any] = {}
