"""One example of every message with all its fields set to something other than their defaults."""

from panal.protocol import messages as m

KEY_ATTEMPT = "req_06h2ockabsj39aah8b1o7lf07o.2"
GATEWAY = "gw_06h2ocgahd4688enr368ns4tqk"
NODE = "node_06h2ocgat4qs0fndpkhuhhnhgs"
INSTANCE = "ins_06h2ocgb5kq2l8ut0e3s1d9v7g"
REPLICA = "rep_06h2ocgb5kq2m0a5b7t6c4v1dg"

EMITTED = m.Emitted(
    text="Hola, ¿qué tal? 🐝",
    token_ids=[1, 200, 49151],
    prompt_tokens=32,
    completion_tokens=3,
    role_sent=True,
)
USAGE = m.TokenUsage(prompt_tokens=32, completion_tokens=20, cached_tokens=24, estimated=True)
WIRE_ERROR = m.WireError(
    kind="caller", message="too long", code="engine_refused", status=400, body=b'{"error":{}}'
)
EVENT = m.Event(
    data=b'data: {"choices":[]}\n\n',
    text=" tal",
    token_ids=[300, 301],
    tokens=2,
    role=True,
    opaque=True,
    finish="stop",
    usage=USAGE,
    error=WIRE_ERROR,
    leaving=True,
)
FRAME = m.Frame(attempt=KEY_ATTEMPT, number=7, events=[EVENT, m.Event(text="!", tokens=1)])
SEAM = m.Seam(resumes=2, nodes=["desk-1", "desk-2"])
GPU_REPORT = m.GpuReport(
    uuid="GPU-4090dddd-0000-4000-8000-000000000001",
    vendor="nvidia",
    name="NVIDIA GeForce RTX 4090",
    driver="580.95.05",
    memory_total_bytes=25_769_803_776,
    memory_free_bytes=24_696_061_952,
    busy_share=0.25,
    temperature_c=41.0,
    power_w=25.5,
    energy_j=1234.5,
    throttle=["power_cap"],
    lost=True,
)
REPLICA_REPORT = m.ReplicaReport(
    replica=REPLICA,
    model="smollm2-135m",
    engine="llama.cpp",
    twin="b179c952",
    resume="token_ids",
    routes=["chat", "completions"],
    context_tokens=4096,
    slots=4,
    running=3,
    waiting=2,
    pending_prefill_tokens=512,
    prefill_tokens_per_s=251.5,
    decode_s_per_token=0.0125,
    healthy=False,
    note="the engine does not answer",
    continues_messages=True,
    gpu=GPU_REPORT.uuid,
    load_s=2.5,
    memory_bytes=543_973_376,
)
ATTEMPT_COUNTS = m.AttemptCounts(
    attempt=KEY_ATTEMPT,
    model="smollm2-135m",
    prompt_tokens=32,
    completion_tokens=20,
    duration_s=1.25,
    outcome="complete",
)
YIELD_REPORT = m.YieldReport(
    no_new_work_s=0.25, handed_over_s=0.5, engine_gone_s=1.5, memory_back_s=2.25, attempts=3, kept=True
)

IN_FULL: tuple[m.Message, ...] = (
    EMITTED,
    m.RunAttempt(
        attempt=KEY_ATTEMPT,
        gateway=GATEWAY,
        instance=INSTANCE,
        replica=REPLICA,
        response_id="chatcmpl-06h2ockabsj39aah8b1o7lf07o",
        created_utc_s=1_796_037_840,
        route="chat",
        model="smollm2-135m",
        stream=True,
        include_usage=True,
        tenant="tnt_default",
        project="prj_default",
        principal="prn_06h2ocgahd4688enr368ns4tqk",
        data_class=2,
        residency=["DE", "ES"],
        deadline_s=599.5,
        first_token_s_max=60.0,
        between_tokens_s_max=30.0,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        cache_salt="tnt_default",
        parts=2,
        body=b'{"model":"smollm2-135m"}',
        emitted=EMITTED,
        hold=True,
        hold_bytes_max=65_536,
        seam=SEAM,
        tools_whole=True,
    ),
    SEAM,
    m.BodyPart(attempt=KEY_ATTEMPT, number=2, body=b"\x00\xff rest"),
    m.Acknowledge(attempt=KEY_ATTEMPT, data_bytes=65_536),
    m.Cancel(attempt=KEY_ATTEMPT, reason="client_gone"),
    m.Present(gateway=GATEWAY, instance=INSTANCE, attempts=[KEY_ATTEMPT], partial=True),
    m.Instruction(
        id="ist_06h2ocgb5kq2l8ut0e3s1d9v7g",
        verb="credential",
        instance=INSTANCE,
        reason="maintenance",
        credential="eyJ0eXAiOiJKV1QifQ.e30.c2ln",
        attempts=[KEY_ATTEMPT],
        term=1_790_000_000,
        macs=["3c:52:82:00:00:01"],
    ),
    USAGE,
    WIRE_ERROR,
    EVENT,
    FRAME,
    m.Frames(frames=[FRAME]),
    GPU_REPORT,
    REPLICA_REPORT,
    m.Heartbeat(
        version=2,
        node=NODE,
        instance=INSTANCE,
        sequence=41,
        state="serving",
        reason="in use by its owner",
        agent_version="0.1.0",
        replicas=[REPLICA_REPORT],
        gpus=[GPU_REPORT],
        hazards_per_h=[0.1, 1.5],
    ),
    ATTEMPT_COUNTS,
    YIELD_REPORT,
    m.Report(
        node=NODE,
        instance=INSTANCE,
        instruction="ist_06h2ocgb5kq2l8ut0e3s1d9v7g",
        renew=True,
        counts=[ATTEMPT_COUNTS],
        yields=[YIELD_REPORT],
        wake=["3c:52:82:00:00:01", "3c:52:82:00:00:02"],
        facts={"cores": 16, "system": "linux"},
    ),
)
