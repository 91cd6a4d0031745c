"""P36: joining with a private certificate, its renewal under connected nodes, and other servers."""

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from panal.node.enrolled import load_enrolled
from tests.support.certificates import aged_leaf, given, other_ca, serial
from tests.support.ends import sentence_of
from tests.support.installation import Installation, short_folder, until
from tests.support.members import Members

NAMES = ("localhost", "127.0.0.1")


@pytest.fixture(scope="module")
def place() -> Iterator[Installation]:
    with short_folder() as made:
        installation = Installation(made, arguments=["--no-node"]).start()
        try:
            yield installation
        finally:
            installation.stop()


@pytest.fixture
def members(place: Installation) -> Iterator[Members]:
    with short_folder() as folder:
        made = Members(place, folder)
        try:
            yield made
        finally:
            made.close()


def ports(place: Installation) -> list[int]:
    return [int(place.environment[name]) for name in ("PANAL_GATEWAY__HTTPS_PORT", "PANAL_BUS__NATS_PORT")]


def served(place: Installation) -> list[int]:
    """Serial numbers of the certificates that gateway and bus show now."""
    return [serial(ssl.get_server_certificate(("127.0.0.1", port), timeout=10)) for port in ports(place)]


def reload(place: Installation) -> None:
    assert place.program is not None
    place.program.process.send_signal(1)


@pytest.mark.timeout(120)
def test_p36_the_pin_is_enough_and_renewal_needs_no_new_join(place: Installation, members: Members) -> None:
    member = members.join()
    members.until_serving(member)
    enrolled = load_enrolled(member.agent_home)
    before = served(place)
    pieces: list[str] = []
    half = threading.Event()

    def read() -> None:
        with openai.OpenAI(base_url=f"{place.url}/v1", api_key=place.key, max_retries=0) as client:
            stream = client.chat.completions.create(
                model="echo",
                messages=[{"role": "user", "content": "count 120"}],
                stream=True,
                extra_body={"x_echo": {"delay_token_s": 0.03}},
            )
            for chunk in stream:
                pieces.append(chunk.choices[0].delta.content or "")
                if len(pieces) == 20:
                    half.set()

    reading = threading.Thread(target=read)
    reading.start()
    assert half.wait(30.0)
    for name in ("gateway", "bus"):
        aged_leaf(place.home, name, NAMES, days_left=20)
    reload(place)
    until(lambda: not set(served(place)) & set(before), 20.0, "gateway and bus show new certificates")
    reading.join(60.0)
    assert "".join(pieces).split()[-1].strip() != "" and len(pieces) > 100
    assert member.program.process.poll() is None
    assert members.serves(member)
    for name in ("gateway", "bus"):
        assert serial((place.home / "ca" / f"{name}.pem").read_text()) in served(place)
    member.stop()
    member.start()
    members.until_serving(member)
    now = load_enrolled(member.agent_home)
    assert enrolled is not None and now is not None
    assert (now.node, now.key_seed, now.pin) == (enrolled.node, enrolled.key_seed, enrolled.pin)


@pytest.mark.timeout(60)
def test_p36_a_certificate_that_cannot_be_used_leaves_the_old_one(place: Installation) -> None:
    before = served(place)
    (place.home / "ca" / "gateway.pem").write_text("no certificate")
    reload(place)
    log = place.home / "logs" / "gateway.log"
    until(lambda: "certificate_kept" in log.read_text(), 15.0, "it is told")
    assert served(place)[0] == before[0]
    (place.home / "ca" / "gateway.pem").unlink()
    reload(place)
    until(lambda: served(place)[0] != before[0], 15.0, "another one is made")


@pytest.mark.timeout(60)
def test_p36_another_ca_or_another_name_is_refused_with_a_clear_text(members: Members) -> None:
    token = members.token()
    environment = members.environment(members.folder / "other")
    wrong_pin = token[:-4] + ("0000" if token[-4:] != "0000" else "1111")
    words = sentence_of(["join", members.url, "--token", wrong_pin], environment)
    assert "not the one that this join token was made for" in words
    by_another_name = members.url.replace("127.0.0.1", "127.1")
    words = sentence_of(["join", by_another_name, "--token", token], environment)
    assert "certificate" in words and "not valid for this address" in words
    assert load_enrolled(members.folder / "other" / "agent") is None
    assert members.join(token).node, "the token was not used up"


@pytest.mark.timeout(120)
def test_p36_a_given_certificate_serves_and_its_successor_too(tmp_path: Path) -> None:
    company = other_ca(tmp_path / "company")
    certificate, key = given(tmp_path, company, NAMES)
    with short_folder() as folder:
        environment = {
            "PANAL_GATEWAY__TLS_CERTIFICATE": str(certificate),
            "PANAL_GATEWAY__TLS_KEY": str(key),
        }
        place = Installation(folder, arguments=["--no-node"], environment=environment).start()
        members = Members(place, folder)
        try:
            assert served(place)[0] == serial(certificate.read_text())
            member = members.join()
            members.until_serving(member)
            given(tmp_path, company, NAMES)
            reload(place)
            until(lambda: served(place)[0] == serial(certificate.read_text()), 15.0, "the new one is shown")
            second = members.join()
            members.until_serving(member, second)
        finally:
            members.close()
            place.stop()


@pytest.mark.timeout(60)
def test_p36_a_given_certificate_that_cannot_serve_stops_the_start(tmp_path: Path) -> None:
    company = other_ca(tmp_path / "company")
    for names, days_left, words in (
        (("gpu.example.com",), 90, "not for '127.0.0.1'"),
        (NAMES, -1, "expired"),
    ):
        certificate, key = given(tmp_path, company, names, days_left)
        settings = {"PANAL_GATEWAY__TLS_CERTIFICATE": str(certificate)}
        both = settings | {"PANAL_GATEWAY__TLS_KEY": str(key)}
        for given_settings, wanted in ((both, words), (settings, "go together")):
            with short_folder() as folder:
                environment = Installation(folder).environment | given_settings
                assert wanted in sentence_of(["up", "--no-node"], environment)
