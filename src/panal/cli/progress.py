"""What a long command is doing, said so that it is seen on a screen and in a log alike."""

from types import TracebackType

from rich.console import Console
from rich.status import Status


class Progress:
    """Steps and notices on ``console``: a moving line on a terminal, a line each elsewhere.

    What programs read (JSON) goes elsewhere, so give a console on the standard error output for that.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status, self._status = self._status, None
        if status is not None:
            status.stop()

    def step(self, words: str) -> None:
        """What begins now."""
        if self._status is not None:
            self._status.update(words)
        else:
            self.notice(words)

    def notice(self, words: str) -> None:
        """Something that stays to be read."""
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)
