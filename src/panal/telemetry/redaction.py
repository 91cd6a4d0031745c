"""What must not reach a log: panal's keys and join tokens, control characters, endless texts."""

import re

TEXT_LENGTH_MAX = 2000

_SECRET = re.compile(r"(sk-panal-|pnl1_)[A-Za-z0-9_.\-]*|(?i:(bearer\s+))[A-Za-z0-9_.~+/=\-]{16,}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def redacted(text: str) -> str:
    """``text`` with everything masked that looks like a key, a join token or a bearer value."""
    if not _suspicious(text):
        return text
    return _SECRET.sub(lambda found: (found[1] or found[2]) + "***", text)


def _suspicious(text: str) -> bool:
    return "sk-panal-" in text or "pnl1_" in text or "earer" in text.lower()


def is_harmless(text: str) -> bool:
    """Whether ``harmless`` surely would leave this text as it is; cheap, and no in doubt."""
    return text.isprintable() and len(text) <= TEXT_LENGTH_MAX and not _suspicious(text)


def harmless(text: str) -> str:
    """``text`` redacted, on one line, its control characters escaped, and cut to TEXT_LENGTH_MAX.

    It is redacted before it is cut, so that no half of a key is left over.
    """
    text = redacted(text[: 4 * TEXT_LENGTH_MAX])
    if not text.isprintable():  # what is printable holds none of them, and is told sooner
        text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    if len(text) > TEXT_LENGTH_MAX:
        return text[:TEXT_LENGTH_MAX] + "..."
    return text
