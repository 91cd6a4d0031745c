"""Who may call what, and how sensitive what they send is."""

from panal.core.errors import BadRequest, ModelNotAllowed, ModelNotFound, NotAllowed
from panal.core.names import name_key
from panal.core.nodes import DataClass
from panal.core.principals import Principal, Role

DATA_CLASS_HEADER = "X-Panal-Data-Class"

_RANK = {Role.USER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


def authorise(principal: Principal, name: str, *, known: bool) -> None:
    """Let ``principal`` call a model by ``name``; raises ModelNotFound or ModelNotAllowed.

    ``known``: whether a model or an alias of that name exists here. The right is one to the name: who
    may use an alias may not use the model's own name by that, nor the other way round.
    """
    shown = f"'{name}'" if len(name) <= 100 and name.isprintable() else "of that name"
    if not known:
        raise ModelNotFound(f"There is no model {shown} here. GET /v1/models lists them.", param="model")
    if principal.models and not may_use(principal, name_key(name)):
        raise ModelNotAllowed(
            f"This key may not use the model {shown}. GET /v1/models lists those that it may use; an admin "
            "can change that.",
            param="model",
        )


def may_use(principal: Principal, key: str) -> bool:
    """Whether the caller may use the name that has this key (``core.names.name_key``)."""
    return not principal.models or key in principal.models


def require_role(principal: Principal, role: Role) -> None:
    """An admin may do what an operator may, an operator what a user may. Raises NotAllowed."""
    if _RANK[principal.role] < _RANK[role]:
        raise NotAllowed(f"This needs the role '{role}'; you have '{principal.role}'.")


def effective_data_class(principal: Principal, requested: str | None) -> DataClass:
    """The higher of the principal's class and the one that the request asks for by header.

    A request may only raise its class: asking for a lower one changes nothing. Raises BadRequest for
    text that names no class.
    """
    if requested is None:
        return principal.data_class
    try:
        asked = DataClass.parse(requested)
    except ValueError:
        known = ", ".join(member.label for member in DataClass)
        raise BadRequest(f"{DATA_CLASS_HEADER} must be one of {known}.", param=DATA_CLASS_HEADER) from None
    return max(asked, principal.data_class)
