"""A node that reaches nothing but a proxy: it joins, serves and comes back, and is told what is wrong."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from panal.node.enrolled import load_enrolled
from tests.support.asking import say
from tests.support.connect_proxy import ConnectProxy, connect_proxy
from tests.support.ends import sentence_of
from tests.support.installation import Installation, Program, short_folder, until
from tests.support.members import Members
from tests.support.served import Served

NAME = "gpu.panal.test"
"""Nobody but the proxy knows where this is."""
USER = "desk:geheim"
LOGIN = "Basic ZGVzazpnZWhlaW0="


class Behind(Members):
    """Machines to which the installation is a name that they cannot look up."""

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.installation.environment['PANAL_GATEWAY__HTTPS_PORT']}"


@pytest.fixture(scope="module")
def place() -> Iterator[Installation]:
    with short_folder() as made:
        environment = {"PANAL_GATEWAY__ADVERTISE": NAME}
        installation = Installation(made, arguments=["--no-node"], environment=environment).start()
        try:
            yield installation
        finally:
            installation.stop()


@pytest.fixture
def members(place: Installation) -> Iterator[Behind]:
    with short_folder() as folder:
        made = Behind(place, folder)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def proxy() -> Iterator[ConnectProxy]:
    with connect_proxy(NAME, login=LOGIN) as made:
        yield made


def with_login(proxy: ConnectProxy) -> str:
    return proxy.url.replace("//", f"//{USER}@")


@pytest.mark.timeout(120)
def test_a_node_joins_and_serves_through_the_proxy(
    place: Installation, members: Behind, proxy: ConnectProxy
) -> None:
    """By the settings of its home; the agent that is started later reads the same file."""
    home = members.folder / "member0"
    home.mkdir()
    (home / "panal.toml").write_text(f'[node]\nproxy = "{with_login(proxy)}"\n')
    member = members.join()
    members.until_serving(member)
    with Served(place).client() as client:
        assert client.chat.completions.create(**say("hello")).choices[0].message.content == "hello"
    targets = set(proxy.asked)
    https, bus = (place.environment[name] for name in ("PANAL_GATEWAY__HTTPS_PORT", "PANAL_BUS__NATS_PORT"))
    assert targets == {f"{NAME}:{https}", f"{NAME}:{bus}"}
    assert proxy.opened >= 4, "two questions at the door, two connections to the bus"
    member.stop()
    opened = proxy.opened
    member.start()
    members.until_serving(member)
    assert proxy.opened >= opened + 2
    for file in [*home.rglob("*.log"), member.agent_home / "node.json"]:
        assert "geheim" not in file.read_text(errors="replace")


@pytest.mark.timeout(120)
def test_the_usual_variable_is_enough_and_the_doctor_says_so(members: Behind, proxy: ConnectProxy) -> None:
    variables = {"HTTPS_PROXY": with_login(proxy), "NO_PROXY": "127.0.0.1,localhost"}
    member = members.join(**variables)
    members.until_serving(member)
    doctor = Program(["doctor"], member.environment)
    try:
        doctor.wait(60.0)
        assert f"reached through the proxy 127.0.0.1:{proxy.port}" in doctor.output
        assert "geheim" not in doctor.output
    finally:
        doctor.kill()


@pytest.mark.timeout(120)
def test_what_is_wrong_with_the_proxy_is_one_sentence(members: Behind, proxy: ConnectProxy) -> None:
    token = members.token()

    def sentence(**variables: str) -> str:
        environment = members.environment(members.folder / "other", **variables)
        words = sentence_of(["join", members.url, "--token", token], environment)
        assert "falsch" not in words
        return words

    assert "asks for a user and a password (407)" in sentence(HTTPS_PROXY=proxy.url)
    wrong = with_login(proxy).replace("geheim", "falsch")
    assert "does not accept its user and password" in sentence(HTTPS_PROXY=wrong)
    assert "node.proxy" in sentence(PANAL_NODE__PROXY="socks5://u:falsch@127.0.0.1:1")
    spared = {"HTTPS_PROXY": with_login(proxy), "NO_PROXY": NAME}
    asked = len(proxy.asked)
    assert "cannot be reached" in sentence(**spared)
    assert "cannot be reached" in sentence(PANAL_NODE__PROXY="none", HTTPS_PROXY=with_login(proxy))
    assert len(proxy.asked) == asked, "NO_PROXY and 'none' are honoured"
    with connect_proxy("elsewhere.panal.test") as strict:
        assert "does not let this machine reach" in sentence(HTTPS_PROXY=strict.url)
    wrong_pin = token[:-4] + ("0000" if token[-4:] != "0000" else "1111")
    environment = members.environment(members.folder / "other", HTTPS_PROXY=with_login(proxy))
    words = sentence_of(["join", members.url, "--token", wrong_pin], environment)
    assert "not the one that this join token was made for" in words
    assert load_enrolled(members.folder / "other" / "agent") is None


@pytest.mark.timeout(120)
def test_admin_commands_go_through_the_proxy_and_to_loopback_straight(
    place: Installation, members: Behind, proxy: ConnectProxy, tmp_path: Path
) -> None:
    environment = {
        "PANAL_HOME": str(tmp_path),
        "PANAL_URL": members.url,
        "PANAL_API_KEY": place.admin_key,
        "PANAL_CA_FILE": str(place.ca_file),
        "HTTPS_PROXY": with_login(proxy),
    }

    def run(**changes: str) -> tuple[int, str]:
        program = Program(["models", "list", "--json"], environment | changes)
        try:
            return program.wait(60.0), program.output
        finally:
            program.kill()

    assert run()[0] == 0
    assert proxy.opened >= 1
    opened = proxy.opened
    local = f"https://127.0.0.1:{place.environment['PANAL_GATEWAY__HTTPS_PORT']}"
    assert run(PANAL_URL=local)[0] == 0
    assert proxy.opened == opened
    status, output = run(HTTPS_PROXY=proxy.url)
    assert status == 1
    assert "asks for a user and a password" in output


@pytest.mark.timeout(120)
def test_a_proxy_that_goes_away_and_comes_back_costs_no_node(members: Behind) -> None:
    with connect_proxy(NAME) as first:
        port = first.port
        member = members.join(HTTPS_PROXY=first.url)
        members.until_serving(member)
    until(lambda: not members.serves(member), 30.0, "the node is not heard any more")
    assert member.program.process.poll() is None
    with connect_proxy(NAME, port=port) as second:
        members.until_serving(member)
        until(lambda: second.opened >= 2, 30.0, "both connections to the bus are back")
