"""A machine alone: what it can still do for an answer when its own engine falls over."""

from tests.support.installation import processes_naming
from tests.support.served import Served


def test_an_answer_goes_on_when_the_only_engine_crashed_and_came_back(served: Served) -> None:
    home = str(served.installation.home)
    with served.client() as client:
        stream = client.chat.completions.create(
            model="echo",
            messages=[{"role": "user", "content": "count 120 🐝"}],
            stream=True,
            extra_body={"x_echo": {"delay_token_s": 0.01}},
        )
        text, killed = "", 0
        for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            if not killed and "30 " in text:
                engines = [
                    each
                    for each in processes_naming(home)
                    if "panal.node.engines.echo_engine" in each.cmdline()
                ]
                for each in engines:
                    each.kill()
                killed = len(engines)
    assert killed == 1
    assert text == " ".join(map(str, range(1, 121)))
