"""Failures of a whole program, as the one that a person should hear of."""

from panal.core.errors import PanalError


def told_of(failure: BaseException) -> PanalError | None:
    """The error to tell, the first in the order in which things were started; None where anything that
    nobody expected is among them, which belongs into the log as it is."""
    if isinstance(failure, PanalError):
        return failure
    if not isinstance(failure, BaseExceptionGroup):
        return None
    told = [told_of(each) for each in failure.exceptions]
    return None if None in told else told[0]
