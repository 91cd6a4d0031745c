"""One installation for each file of tests. A file says how by its constants UP and ENVIRONMENT."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, short_folder
from tests.support.served import Served


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """``panal up`` with the file's UP (arguments) and ENVIRONMENT (settings), one echo engine by default."""
    arguments = getattr(request.module, "UP", ["--engine", "echo"])
    environment = getattr(request.module, "ENVIRONMENT", {})
    with short_folder() as folder:
        made = Served(installation_in(folder, arguments, environment))
        try:
            made.installation.start()
            yield made
        finally:
            made.stop()


def installation_in(folder: Path, arguments: list[str], environment: dict[str, str]) -> Installation:
    return Installation(folder, arguments=arguments, environment={"PANAL_NODE__SLOTS": "32"} | environment)
