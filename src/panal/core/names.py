"""The one rule for names of models and aliases, the same on every route (docs/models.md).

Spaces around a name do not count, nor does the case of its letters, nor how an accent is put together
(one character or two). Everything else counts, spaces inside too. A name is shown as it was first written.
"""

from unicodedata import normalize

NAME_CHARACTERS_MAX = 256


def name_key(name: str) -> str:
    """What a name is compared by: two names are the same if and only if their keys are equal.

    The key of a key is itself; the key of a name that is nothing but spaces is empty.
    """
    if name.isascii():
        return name.strip(" ").lower()
    # Unicode's canonical caseless matching, definition D145: taken apart, folded, taken apart again.
    return normalize("NFD", normalize("NFD", name.strip(" ")).casefold())


def name_fault(name: str) -> str:
    """What is wrong with a name that somebody wants to give, as the end of a sentence; empty: nothing."""
    if not name.strip(" "):
        return "must not be empty"
    too_long = len(name) > NAME_CHARACTERS_MAX
    if not too_long and not name.isascii():  # taken apart it may be longer
        too_long = len(name_key(name)) > NAME_CHARACTERS_MAX
    if too_long or not name.isprintable():
        return f"must be at most {NAME_CHARACTERS_MAX} characters that can be printed"
    return ""
