"""Adapters by entry point: found, or refused with a plain word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provisioner import loader
from provisioner.loader import AdapterBrokenError, AdapterUnknownError

REPOSITORY = Path(loader.__file__).resolve().parent.parent
GOOD = """
from pydantic import BaseModel
class Config(BaseModel):
    model_config = {"extra": "forbid"}
class Cloud:
    Config = Config
    def poll(self): ...
    def start(self): ...
    def stop(self): ...
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Installs a distribution with one site adapter, ``cloud``, made of the source in the test's parameter."""
    module = f"cloud_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(request.param)
    egg = tmp_path / "cloudy-1.0.dist-info"
    egg.mkdir()
    (egg / "METADATA").write_text("Metadata-Version: 2.1\nName: cloudy\nVersion: 1.0\n")
    (egg / "entry_points.txt").write_text(f"[provisioner.sites]\ncloud = {module}:Cloud\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


def test_the_shipped_adapters_are_found_and_whole() -> None:
    assert "local" in loader.site_adapters()
    assert {"embedded", "htcondor"} <= set(loader.overlay_adapters())
    assert loader.site_adapter("local").Config.__name__
    assert loader.overlay_adapter("embedded").Config.__name__
    assert loader.is_shipped(loader.SITES, "local")


@pytest.mark.parametrize("installed", [GOOD], indirect=True)
def test_an_adapter_of_another_distribution_is_found(installed: str) -> None:
    adapter = loader.site_adapter("cloud")

    assert getattr(adapter, "__module__", "") == installed
    assert "cloud" in loader.site_adapters()
    assert not loader.is_shipped(loader.SITES, "cloud")


def test_an_unknown_adapter_comes_with_the_known_ones() -> None:
    with pytest.raises(AdapterUnknownError, match="no site adapter `locale` is installed") as raised:
        loader.site_adapter("locale")
    assert "local" in raised.value.known


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ("import no_such_library\n", "cannot be imported: Python module `no_such_library` is missing"),
        ("raise OSError('libslurm.so: cannot open')\n", r"cannot be imported: OSError: libslurm.so: cannot open"),
        ("x = 1\n", "has no attribute 'Cloud'"),
        ("class Cloud: ...\n", "has no `Config`"),
        (GOOD.replace('"forbid"', '"allow"'), "lets unknown options pass"),
        (GOOD.replace("def stop", "def halt"), "lacks the methods stop"),
    ],
    indirect=["installed"],
)
def test_an_adapter_that_cannot_be_used_says_why(installed: str, words: str) -> None:
    with pytest.raises(AdapterBrokenError, match=words) as raised:
        loader.site_adapter("cloud")
    assert f"site adapter `cloud` ({installed}:Cloud)" in str(raised.value)


def test_another_package_of_our_name_is_told_by_its_place(tmp_path: Path) -> None:
    other = tmp_path / "adapters"
    other.mkdir()
    (other / "__init__.py").write_text("")
    script = "from provisioner import loader\nloader.site_adapter('local')"

    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert run.returncode == 1
    assert (
        f"lives in package `adapters` at {REPOSITORY}/adapters, but Python finds {other} under that name" in run.stderr
    )
