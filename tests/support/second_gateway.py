"""Another gateway process beside an installation's own, on the same store and bus."""

import contextlib
import shutil
from collections.abc import Iterator

import openai

from tests.support.asking import say
from tests.support.installation import Program, free_ports, until
from tests.support.served import Served


@contextlib.contextmanager
def second_gateway(served: Served) -> Iterator[int]:
    """Gives its port once it answers; it has a home of its own with the installation's secrets."""
    first = served.installation
    home = first.home.parent / "other-gateway"
    shutil.copytree(first.home, home, ignore=shutil.ignore_patterns("panal.db*", "spool", "logs", "agent"))
    http, https = free_ports(2)
    program = Program(
        ["gateway", "--home", str(home)],
        first.environment
        | {
            "PANAL_HOME": str(home),
            "PANAL_GATEWAY__HTTP_PORT": str(http),
            "PANAL_GATEWAY__HTTPS_PORT": str(https),
            "PANAL_GATEWAY__STORE_URL": f"sqlite:///{first.home / 'panal.db'}",
        },
    )
    try:
        until(lambda: '"ready"' in program.output, 30.0, "the second gateway is ready")
        with served.client(port=http) as client:
            until(lambda: _answers(client), 30.0, "the second gateway answers")
        yield http
    finally:
        program.kill()


def _answers(client: openai.OpenAI) -> bool:
    try:
        client.chat.completions.create(**say("there?"))
    except openai.APIStatusError:
        return False
    return True
