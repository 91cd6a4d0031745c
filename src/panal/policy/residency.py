"""Where a request may be handled. Whatever is not known is a no."""

from collections.abc import Set

from panal.core.nodes import DataClass

_CLASSES = frozenset(int(member) for member in DataClass)


def node_may_see(data_class: int, residency: Set[str], *, node_data_class: int, node_country: str) -> bool:
    """Whether a node may handle a request.

    ``data_class`` and ``residency`` are the request's (an empty residency: any country);
    ``node_data_class`` is the highest class that the node may see, ``node_country`` where it stands as
    two capital letters, empty when nobody said. Both come from its join token, never from the node.
    """
    if data_class not in _CLASSES or node_data_class not in _CLASSES or data_class > node_data_class:
        return False
    return not residency or (node_country != "" and node_country in residency)
