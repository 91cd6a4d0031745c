"""What callers were refused for lack of a key or a right, told to whoever keeps it."""

from collections.abc import Callable

from panal.core.errors import NotAllowed, NotAuthenticated, PanalError
from panal.core.principals import Principal
from panal.identity.refusals import Refusal


class RefusedCalls:
    """``note`` and ``owner_of`` neither wait nor raise."""

    def __init__(
        self, note: Callable[[Refusal], None], owner_of: Callable[[bytes], Principal | None]
    ) -> None:
        self._note = note
        self._owner_of = owner_of

    def call(
        self,
        error: PanalError,
        *,
        target: str,
        peer: str,
        principal: Principal | None,
        authorization: bytes | None,
    ) -> None:
        """``target`` is the route as it is declared. A call without any key is no attempt to get in."""
        if isinstance(error, NotAuthenticated) and authorization is not None:
            owner = self._owner_of(authorization)
            self._note(Refusal("key.use", error.code, peer, target if owner else "", owner))
        elif isinstance(error, NotAllowed) and principal is not None:
            self._note(Refusal("api.call", error.code, peer, target, principal, error.message))
