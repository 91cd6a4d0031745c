"""Who is calling. There is no empty principal: code either has one or raises NotAuthenticated."""

from dataclasses import dataclass
from enum import StrEnum

from panal.core.ids import ApiKeyId, PrincipalId, ProjectId, TenantId
from panal.core.nodes import DataClass


class Role(StrEnum):
    """First roles: a user calls models, an operator sees, an admin also changes."""

    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller, as identity found it.

    ``data_class`` is the class of what this caller sends unless a request raises it;
    ``residency`` the countries where it may be handled (empty: anywhere the operator has nodes);
    ``models`` the keys (``core.names.name_key``) of the names that it may use (empty: all);
    ``tools_whole`` whether it wants tool calls in one piece where a request does not say.
    """

    principal_id: PrincipalId
    tenant_id: TenantId
    project_id: ProjectId
    role: Role
    key_id: ApiKeyId
    data_class: DataClass = DataClass.INTERNAL
    residency: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    tools_whole: bool = False
