"""Programs that are expected to end by themselves with one sentence."""

from tests.support.installation import Program


def sentence_of(arguments: list[str], environment: dict[str, str], seconds: float = 60.0) -> str:
    """The one sentence with which a command gives up; fails for a traceback or a good end."""
    program = Program(arguments, environment)
    try:
        status = program.wait(seconds)
    finally:
        program.kill()
    assert status not in (0, None), program.output
    return the_sentence(program.output)


def the_sentence(output: str) -> str:
    assert "Traceback" not in output, output
    lines = [line for line in output.splitlines() if line.startswith("panal: ")]
    assert len(lines) == 1, output
    return lines[0].removeprefix("panal: ")
