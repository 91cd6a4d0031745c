"""A program that starts a migration again and again and kills it before its first, second, ... statement.

Arguments: a URL, then the revisions and, after ``--``, the folders of the migrations. One JSON line for each
start on its output: ``{"killed": true, "statement": "..."}``; the last one has ``killed`` false. It waits for
a line on its input before it goes on, so that the test looks at what each kill left.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import sqlalchemy as sa

from panal.store import open_store
from panal.store.migrate import Migrations


def start(url: str, migrations: Migrations, kill_at: int, report: int) -> None:
    """Migrate in this process; it kills itself before statement ``kill_at``."""
    seen = 0

    def before(_connection, _cursor, statement, *_more) -> None:  # type: ignore[no-untyped-def]
        nonlocal seen
        seen += 1
        if seen == kill_at:
            os.write(report, " ".join(statement.split())[:200].encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def before_commit(connection: sa.Connection) -> None:
        before(connection, None, "COMMIT")

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    sa.event.listen(sa.Engine, "commit", before_commit)

    async def run() -> None:
        await (await open_store(url, migrations=migrations)).close()

    asyncio.run(run())


def main(url: str, migrations: Migrations) -> None:
    kill_at = 0
    while True:
        kill_at += 1
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                start(url, migrations, kill_at, write)
            except BaseException as error:  # noqa: BLE001 - told to the test
                os.write(write, repr(error).encode())
                os._exit(1)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as reader:
            statement = reader.read()
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        print(json.dumps({"killed": killed, "statement": statement, "status": status}), flush=True)
        if not killed or not sys.stdin.readline():
            return


if __name__ == "__main__":
    place = sys.argv.index("--")
    main(sys.argv[1], Migrations(tuple(sys.argv[2:place]), tuple(map(Path, sys.argv[place + 1 :]))))
