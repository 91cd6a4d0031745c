"""The echo engine as a program of the agent."""

import sys
from pathlib import Path

from panal import __version__
from panal.core.requests import Route
from panal.node.engines.engine import EngineFacts, Resume
from panal.node.engines.open_message import vllm_message
from panal.node.engines.process import Program
from panal.node.engines.program_engine import ProgramEngine
from panal.node.engines.token_ids import TokenIdsDialect

ECHO_TWIN = "echo-1"


def echo_engine(
    home: Path,
    *,
    model: str = "echo",
    slots: int = 256,
    options: tuple[str, ...] = (),
    start_s_max: float = 20.0,
) -> ProgramEngine:
    """The engine, not started. ``options`` go to the program's command line."""
    command = (
        sys.executable, "-m", "panal.node.engines.echo_engine", "--home", str(home), "--supervised",
        "--model", model, "--slots", str(slots), *options,
    )  # fmt: skip
    facts = EngineFacts(
        kind="echo",
        model=model,
        twin=ECHO_TWIN,
        resume=Resume.TOKEN_IDS,
        routes=(Route.CHAT, Route.COMPLETIONS, Route.EMBEDDINGS),
        slots=slots,
        continues_messages=True,
        version=__version__,
    )
    return ProgramEngine(
        Program(command, home / "echo.log", ready_s_max=start_s_max),
        TokenIdsDialect(vllm_message),
        facts,
        model,
    )
