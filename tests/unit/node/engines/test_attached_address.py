"""Addresses of engines that somebody else runs."""

import pytest

from panal.core.errors import SettingsError
from panal.node.engines.attached import address_of
from panal.node.engines.http_stream import EngineAddress


def test_reads_addresses_as_people_write_them() -> None:
    assert address_of("http://127.0.0.1:8000", "k") == EngineAddress("127.0.0.1", 8000, "", False, "k")
    assert address_of("http://localhost:8000/v1/", "") == EngineAddress("localhost", 8000)
    assert address_of("https://gpu.example.com/llm/v1", "") == EngineAddress(
        "gpu.example.com", 443, "/llm", True
    )
    assert address_of("http://[::1]:9", "") == EngineAddress("::1", 9)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://x", "http://", "http://x:y", "http://u:p@x", "http://x?a"]
)
def test_refuses_anything_else_with_a_sentence(url: str) -> None:
    with pytest.raises(SettingsError, match="use http://host:port"):
        address_of(url, "")


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(address_of("http://x:1", "secret"))
