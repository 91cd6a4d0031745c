"""Which proxy leads where: what is set, what is spared, and what is never shown."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.errors import SettingsError
from panal.core.proxies import STRAIGHT, Proxy, proxies_of, proxy_fault
from panal.core.settings import describe, load

SET = "http://set.example.com:8080"


def host_of(setting: str, environment: dict[str, str], host: str = "gpu.example.com") -> str:
    proxy = proxies_of(setting, (), environment).of(host, 7443)
    return "" if proxy is None else str(proxy)


@pytest.mark.parametrize(
    ("setting", "environment", "expected"),
    [
        ("", {}, ""),
        (SET, {}, "set.example.com:8080"),
        (SET, {"HTTPS_PROXY": "http://env:1"}, "set.example.com:8080"),
        ("", {"HTTPS_PROXY": "http://env:1"}, "env:1"),
        ("", {"HTTPS_PROXY": "http://upper:1", "https_proxy": "http://lower:1"}, "lower:1"),
        ("", {"HTTPS_PROXY": "env"}, "env:3128"),
        ("", {"HTTP_PROXY": "http://env:1", "ALL_PROXY": "http://env:1"}, ""),
        ("none", {"HTTPS_PROXY": "http://env:1"}, ""),
        ("http://[2001:db8::1]:81", {}, "[2001:db8::1]:81"),
    ],
)
def test_the_setting_comes_before_the_environment(
    setting: str, environment: dict[str, str], expected: str
) -> None:
    assert host_of(setting, environment) == expected


@pytest.mark.parametrize(
    ("spared", "host", "straight"),
    [
        ("gpu.example.com", "gpu.example.com", True),
        ("GPU.example.com.", "gpu.EXAMPLE.com", True),
        ("example.com", "gpu.example.com", True),
        (".example.com", "gpu.example.com", True),
        ("*.example.com", "gpu.example.com", True),
        ("ample.com", "gpu.example.com", False),
        ("gpu.example.com:7443", "gpu.example.com", True),
        ("gpu.example.com:443", "gpu.example.com", False),
        ("other, gpu.example.com", "gpu.example.com", True),
        ("*", "gpu.example.com", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3:7443", "10.1.2.3", True),
        ("10.1.2.3:1", "10.1.2.3", False),
        ("192.168.0.0/16", "10.1.2.3", False),
        ("10.0.0.0/8", "10.example.com", False),
        ("2001:db8::/32", "2001:db8::1", True),
        ("[2001:db8::1]:7443", "2001:db8::1", True),
        (", ,", "gpu.example.com", False),
    ],
)
def test_no_proxy_is_honoured(spared: str, host: str, straight: bool) -> None:
    assert (host_of(SET, {"NO_PROXY": spared}, host) == "") == straight
    assert (host_of(SET, {"no_proxy": spared}, host) == "") == straight
    assert (proxies_of(SET, tuple(spared.split(",")), {}).of(host, 7443) is None) == straight


@given(st.sampled_from(["127.0.0.1", "127.9.8.7", "::1", "localhost", "LOCALHOST.", "a.localhost"]))
def test_loopback_never_goes_through_a_proxy(host: str) -> None:
    assert host_of(SET, {"HTTPS_PROXY": SET}, host) == ""


@given(st.text(), st.text(), st.text(), st.integers(0, 70000))
def test_no_text_of_the_environment_makes_anything_but_a_proxy_or_a_sentence(
    given_text: str, spared: str, host: str, port: int
) -> None:
    proxies = proxies_of("", (), {"HTTPS_PROXY": given_text, "NO_PROXY": spared})
    try:
        proxy = proxies.of(host, port)
    except SettingsError as error:
        assert "HTTPS_PROXY" in error.message
    else:
        assert proxy is None or (proxy.host and 0 < proxy.port < 65536)


@pytest.mark.parametrize(
    "text",
    ["socks5://a:1", "https://a:1", "http://", "http://a:x", "http://a:99999", "http://a/b", "ftp://a"],
)
def test_what_is_no_proxy_is_refused_with_a_sentence(text: str) -> None:
    assert "http://host:port" in (proxy_fault(text) or "")
    with pytest.raises(SettingsError, match=r"node\.proxy"):
        load(None, {"PANAL_NODE__PROXY": text})


def test_user_and_password_are_sent_decoded_and_shown_nowhere() -> None:
    text = "http://us%40er:pa%3Ass@proxy.example.com:1"
    proxy = Proxy.parse(text)
    assert proxy.authorization == "Basic " + base64.b64encode(b"us@er:pa:ss").decode()
    settings = load(None, {"PANAL_NODE__PROXY": text})
    shown = [str(proxy), repr(proxy), repr(settings), repr(proxies_of(text, (), {}))]
    shown += [f"{row.value} {row.source}" for row in describe(settings)]
    with pytest.raises(SettingsError) as told:
        load(None, {"PANAL_NODE__PROXY": "socks5://us:pass@proxy"})
    for each in [*shown, told.value.message]:
        assert "pa" + "%3A" not in each and "pass@" not in each and proxy.authorization not in each


def test_nothing_set_is_no_proxy() -> None:
    assert proxies_of("", ("a",), {"NO_PROXY": "b"}) == STRAIGHT
