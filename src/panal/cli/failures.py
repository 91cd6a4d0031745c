"""Failures out of task groups, as the one that a person should hear of."""

from panal.core.errors import PanalError


def first_of(group: BaseExceptionGroup[PanalError]) -> PanalError:
    """The first error in the order in which things were started."""
    for error in group.exceptions:
        return first_of(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("an exception group is never empty")
