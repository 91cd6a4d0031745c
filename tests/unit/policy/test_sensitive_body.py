"""With confidential data only known fields pass."""

import pytest

from panal.core.errors import BadRequest
from panal.policy.body_rules import ALLOWED_FOR_SENSITIVE, DENIED_ON_TOP, check_sensitive_body


def test_openai_s_own_fields_pass_and_others_are_named() -> None:
    check_sensitive_body({"model": "m", "messages": [], "temperature": 0, "tools": []})
    with pytest.raises(BadRequest, match="x_test") as refused:
        check_sensitive_body({"model": "m", "x_test": 1})
    assert refused.value.param == "x_test"


def test_nothing_is_both_allowed_and_denied() -> None:
    assert not ALLOWED_FOR_SENSITIVE & DENIED_ON_TOP
