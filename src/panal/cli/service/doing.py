"""Carries out a plan on this machine, and reads back what a service says."""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from panal.cli.service.plan import Plan
from panal.core.errors import SettingsError

STEP_S_MAX = 60.0
LOG_TAIL_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    status: int
    output: str


Run = Callable[[tuple[str, ...]], Done]


def run(command: tuple[str, ...]) -> Done:
    """Run a command of the system. Raises SettingsError when it is not there or does not end."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=STEP_S_MAX, check=False, errors="replace"
        )
    except FileNotFoundError as error:
        raise SettingsError(
            f"This system has no '{command[0]}', so there is no service to manage."
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"'{' '.join(command)}' did not end well: {type(error).__name__}.") from error
    return Done(done.returncode, (done.stdout + done.stderr).strip())


def carry_out(plan: Plan, run_step: Run = run) -> None:
    """Write, run, remove. Raises SettingsError at the first thing that fails, saying what."""
    for file, text in plan.files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f".{file.name}.draft")
            draft.write_text(text, encoding="utf-16" if 'encoding="UTF-16"' in text[:60] else "utf-8")
            draft.replace(file)
        except OSError as error:
            raise SettingsError(f"{file} cannot be written ({error.strerror}).") from error
    for step in plan.steps:
        done = run_step(step.command)
        if done.status != 0 and not step.optional:
            words = done.output.splitlines()[-1] if done.output else f"status {done.status}"
            raise SettingsError(f"'{' '.join(step.command)}' failed: {words}")
    for file in plan.removes:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise SettingsError(f"{file} cannot be removed ({error.strerror}).") from error


def shown(plan: Plan) -> dict[str, Any]:
    """The plan for ``--dry-run`` and ``--json``."""
    return {
        "files": [{"path": str(file), "content": text} for file, text in plan.files],
        "commands": [list(step.command) for step in plan.steps],
        "removes": [str(file) for file in plan.removes],
        "notes": list(plan.notes),
    }


def log_lines(files: list[Path], lines: int) -> list[dict[str, Any]]:
    """The newest entries of panal's own logs, oldest first; what is no JSON line is left out."""
    found: list[dict[str, Any]] = []
    for file in files:
        found += _entries(file)
    return sorted(found, key=lambda entry: float(entry.get("utc_s", 0.0)))[-lines:]


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - LOG_TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("utc_s", 0.0), int | float):
            yield entry
