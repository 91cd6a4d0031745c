"""The ``panal`` command. The agent takes a short way of its own, so that it stays small."""

import sys

from panal.core.errors import PanalError


def main() -> None:
    """Run the command line; every failure ends as one sentence and a status that is not 0."""
    arguments = sys.argv[1:]
    try:
        if arguments[:1] == ["agent"]:
            from panal.cli.agent_program import main as agent

            agent(arguments[1:])
        else:
            from panal.cli.commands import application

            application()()
    except PanalError as error:
        print(f"panal: {error.message}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
