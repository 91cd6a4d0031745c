"""Names of models as somebody gives them: checked before they are kept."""

from collections.abc import Collection

from panal.core.errors import BadRequest
from panal.core.names import name_fault, name_key
from panal.telemetry.redaction import redacted

MODELS_OF_KEY_MAX = 100


def checked_name(name: str, param: str) -> str:
    """The name without the spaces around it. Raises BadRequest."""
    if fault := name_fault(name):
        raise BadRequest(f"'{param}' {fault}.", param=param)
    if redacted(name) != name:
        raise BadRequest(f"'{param}' holds an API key or a token instead of a name.", param=param)
    return name.strip(" ")


def checked_models(names: Collection[str]) -> frozenset[str]:
    """A key's names, each once. They need not exist yet. Raises BadRequest."""
    if len(names) > MODELS_OF_KEY_MAX:
        raise BadRequest(f"A key is restricted to at most {MODELS_OF_KEY_MAX} names.", param="models")
    once = {name_key(name): checked_name(name, "models") for name in sorted(names)}
    return frozenset(once.values())
