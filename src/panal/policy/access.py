"""Who may call what, and how sensitive what they send is."""

from collections.abc import Collection, Mapping

from panal.core.errors import BadRequest, ModelNotFound, NotAllowed
from panal.core.ids import ProjectId
from panal.core.nodes import DataClass
from panal.core.principals import Principal, Role

DATA_CLASS_HEADER = "X-Panal-Data-Class"

_RANK = {Role.USER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


def authorise(
    principal: Principal,
    model: str,
    *,
    known: bool,
    allowed: Mapping[ProjectId, Collection[str]] | None = None,
) -> None:
    """Let ``principal`` call ``model``, or raise ModelNotFound.

    ``known``: whether such a model exists here. ``allowed``: the models of each project, a
    project that is not in it has none; None: every project may use every model.
    A model that is not allowed looks exactly like one that does not exist.
    """
    if known and (allowed is None or model in allowed.get(principal.project_id, ())):
        return
    shown = repr(model) if len(model) <= 100 and model.isprintable() else "of that name"
    raise ModelNotFound(f"The model {shown} does not exist or you may not use it.", param="model")


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
