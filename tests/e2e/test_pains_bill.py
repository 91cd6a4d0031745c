"""One call is one row on the bill, however many nodes it took."""

import re
from concurrent.futures import ThreadPoolExecutor

from tests.support.asking import say
from tests.support.failing_engine import COMPLETION_TOKENS, PROMPT_TOKENS, failing_engine
from tests.support.served import Served

UP = ["--no-node"]
CALLS = 50


def attempts(served: Served) -> float:
    """All attempts that ended, of every cause."""
    return sum(
        float(count) for count in re.findall(r"^panal_attempts_total\{.*\} (\S+)$", served.metrics(), re.M)
    )


def test_p09_one_call_with_three_attempts_is_one_row_on_the_bill(served: Served) -> None:
    """Each of 50 parallel requests meets two nodes that answer 500 and a third one that answers."""
    with failing_engine(2) as engine:
        names = ["first", "second", "third"]
        for name in names:
            served.join(name, "--engine-url", engine.url)
        served.until_serving(*names)
        attempts_before = attempts(served)
        begun = served.admin().get("/api/v1/usage/totals")
        with served.client() as client, ThreadPoolExecutor(CALLS) as pool:
            answers = list(
                pool.map(lambda each: client.chat.completions.create(**say(f"prompt {each}")), range(CALLS))
            )
        shown = sum(answer.usage.total_tokens for answer in answers)
        records = [served.record_of(answer.id) for answer in answers]
    assert shown == CALLS * (PROMPT_TOKENS + COMPLETION_TOKENS)
    assert sum(record["prompt_tokens"] + record["completion_tokens"] for record in records) == shown
    assert {record["attempts"] for record in records} == {3}
    assert len({record["request"] for record in records}) == CALLS
    ended = served.admin().get("/api/v1/usage/totals")
    assert ended["requests"] - begun["requests"] == CALLS
    assert attempts(served) - attempts_before == 3 * CALLS
