"""The units as systemd itself reads them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from panal.cli.service import systemd
from panal.cli.service.plan import Service

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed (scripts/system-packages installs it)",
)


def version() -> int:
    told = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    return int(told.split()[1])


def verified(unit: Path, *, user: bool) -> str:
    """What systemd finds wrong with a unit file; empty for nothing."""
    scope = ["--user"] if user else []
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *scope, str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stderr if done.returncode == 0 else f"status {done.returncode}: {done.stderr}"


@pytest.mark.parametrize("what", ["agent", "up"])
@pytest.mark.parametrize("scope", ["user", "system"])
@pytest.mark.parametrize("on_desktop", [False, True])
def test_systemd_finds_nothing_wrong_with_a_unit(
    tmp_path: Path, what: str, scope: str, on_desktop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    service = Service(
        what=what,  # type: ignore[arg-type]
        scope=scope,  # type: ignore[arg-type]
        python=Path(sys.executable),
        home=tmp_path / "a home",
        account="root",
        arguments=("--config", "my %i $file.toml"),
        environment=(("PANAL_CACHE", str(tmp_path / "cache of models")),),
        on_desktop=on_desktop,
    )
    unit = tmp_path / f"{service.name}.service"
    unit.write_text(systemd.unit(service, version()))
    assert verified(unit, user=scope == "user") == ""


def test_systemd_would_find_a_fault(tmp_path: Path) -> None:
    service = Service(
        what="agent", scope="system", python=Path(sys.executable), home=tmp_path, account="root"
    )
    unit = tmp_path / "panal-agent.service"
    unit.write_text(systemd.unit(service, version()).replace("UMask=0077", "UMask=rather private"))
    assert "Failed to parse mode value" in verified(unit, user=False)


def test_the_system_s_unit_is_judged_safe_enough(tmp_path: Path) -> None:
    """systemd's own measure of exposure, from 0 (none) to 10."""
    service = Service(what="agent", scope="system", python=Path(sys.executable), home=tmp_path)
    unit = tmp_path / "panal-agent.service"
    unit.write_text(systemd.unit(service, version()))
    told = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    last = [line for line in told.stdout.splitlines() if "Overall exposure level" in line]
    assert last, told.stderr
    print(last[0])
    assert float(last[0].split(":")[1].split()[0]) < 5.0
