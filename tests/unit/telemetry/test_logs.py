"""Logs: one JSON line a record, nothing secret in it, files that stay small."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.telemetry.logs import JsonLines, configure, fields, note
from panal.telemetry.redaction import TEXT_LENGTH_MAX, harmless, redacted

KEY = "sk-panal-AbC123_def-456"
TOKEN = "pnl1_eyJhbGciOi.J9"


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("panal.test_logs")
    logger.propagate = False
    yield logger
    for handler in list(logger.handlers):
        handler.close()
    logging.captureWarnings(capture=False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_line_with_action_and_request(log: logging.Logger) -> None:
    stream = io.StringIO()
    configure(program="agent", level="info", stream=stream, root=log)
    log.info("engine\nstarted", extra=fields(action="engine_started", request_id="req_1", seconds=1.5))
    log.debug("not written")
    (line,) = lines(stream)
    assert line["action"] == "engine_started"
    assert line["request_id"] == "req_1"
    assert line["seconds"] == 1.5
    assert line["level"] == "info"
    assert line["program"] == "agent"
    assert line["message"] == "engine\\u000astarted"


def test_keys_and_tokens_are_masked_everywhere(log: logging.Logger) -> None:
    stream = io.StringIO()
    configure(program="gateway", level="debug", stream=stream, root=log)
    log.warning("bad key %s", KEY, extra=fields(action="refused", header=f"Bearer {KEY}", token=TOKEN))
    try:
        raise ValueError(f"cannot use {KEY} with {TOKEN}")
    except ValueError:
        log.exception("failed")
    text = stream.getvalue()
    assert "AbC123" not in text
    assert "eyJhb" not in text
    assert lines(stream)[1]["error"] == "ValueError"


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=40), st.text(max_size=5000))
def test_no_text_before_a_key_saves_it(before: str, after: str) -> None:
    assert "AbC123" not in harmless(f"{before} {KEY} {after}")


@given(st.integers(min_value=0, max_value=9000))
def test_no_part_of_a_key_survives_the_cut(length: int) -> None:
    assert "AbC" not in harmless("x" * length + KEY)


@given(st.text(max_size=3000))
def test_what_is_written_is_one_short_line_of_json(text: str) -> None:
    out = harmless(text)
    assert len(out) <= TEXT_LENGTH_MAX + 3
    assert len(out.splitlines()) <= 1
    out.encode()


def test_bearer_values_of_others_are_masked_too() -> None:
    assert redacted("Authorization: Bearer abc.def/ghi-jklmno") == "Authorization: Bearer ***"
    assert redacted("the bearer came late") == "the bearer came late"


def test_arguments_that_do_not_fit_are_no_crash(log: logging.Logger) -> None:
    stream = io.StringIO()
    configure(program="agent", level="info", stream=stream, root=log)
    log.info("a %d", "b")
    log.info("c", extra=fields(action="x", number=float("nan")))
    assert [line["message"] for line in lines(stream)] == ["a %d (its arguments do not fit)", "c"]


def test_files_turn_over_and_old_ones_go(log: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "logs" / "agent.log"
    configure(program="agent", level="info", file=file, file_bytes_max=2000, keep=2, root=log)
    for number in range(100):
        log.info("line %d", number)
    for handler in log.handlers:
        handler.close()
    names = sorted(path.name for path in file.parent.iterdir())
    assert names == ["agent.log", "agent.log.1", "agent.log.2"]
    assert all(path.stat().st_size <= 2000 for path in file.parent.iterdir())
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in file.parent.iterdir())


def test_configuring_again_replaces_the_handlers(log: logging.Logger) -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(program="a", level="info", stream=first, root=log)
    configure(program="a", level="info", stream=second, root=log)
    log.info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


class Said(msgspec.Struct):
    """What is noted once a request, with a field of each kind."""

    action: str
    text: str | None
    number: int
    seconds: float
    yes: bool


TEXTS = st.text(max_size=60) | st.sampled_from(
    [KEY, TOKEN, "Bearer abcdefghijklmnopqrst", "x" * 5000, "\\", "\u2028", "\ud800"]
)


@given(
    st.builds(
        Said,
        TEXTS,
        st.none() | TEXTS,
        st.integers(-(2**62), 2**62),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
    ),
    TEXTS,
)
def test_a_line_written_at_once_is_the_one_that_each_field_by_itself_gives(said: Said, message: str) -> None:
    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    class OneByOne(JsonLines):
        def _at_once(self, line: dict[str, Any], said: msgspec.Struct) -> None:
            return None

    kept: list[logging.LogRecord] = []
    log = logging.Logger("panal.test", logging.INFO)  # noqa: LOG001 - no other test may hear of it
    log.addHandler(Keeping())
    note(log, message, said)
    assert json.loads(JsonLines("gateway").format(kept[0])) == json.loads(OneByOne("gateway").format(kept[0]))


def test_a_full_file_from_before_is_turned_over_first(log: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "agent.log"
    file.write_text("x" * 3000)
    configure(program="agent", level="info", file=file, file_bytes_max=2000, keep=2, root=log)
    log.info("first")
    assert file.stat().st_size < 2000
    assert (tmp_path / "agent.log.1").stat().st_size == 3000
