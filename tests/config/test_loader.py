"""Adapters by entry point: found, or refused with a plain word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provisioner import loader
from provisioner.loader import AdapterBrokenError, AdapterUnknownError
from tests.config.conftest import CLOUD, InstallAdapter

REPOSITORY = Path(loader.__file__).resolve().parent.parent


@pytest.fixture
def installed(install_adapter: InstallAdapter, request: pytest.FixtureRequest) -> tuple[str, str]:
    """Install a site adapter of the source in the test's parameter; return its name and its module."""
    name = f"cloud{abs(hash(request.node.name))}"
    return name, install_adapter(name, request.param)


def test_the_shipped_adapters_are_found_and_whole() -> None:
    assert "local" in loader.site_adapters()
    assert {"embedded", "htcondor"} <= set(loader.overlay_adapters())
    assert loader.site_adapter("local").Config.__name__
    assert loader.overlay_adapter("embedded").Config.__name__
    assert loader.is_shipped(loader.SITES, "local")


@pytest.mark.parametrize("installed", [CLOUD], indirect=True)
def test_an_adapter_of_another_distribution_is_found(installed: tuple[str, str]) -> None:
    name, module = installed
    assert getattr(loader.site_adapter(name), "__module__", "") == module
    assert name in loader.site_adapters()
    assert not loader.is_shipped(loader.SITES, name)


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
        (CLOUD.replace('"forbid"', '"allow"'), "lets unknown options pass"),
        (CLOUD.replace("def stop", "def halt"), "lacks the methods stop"),
    ],
    indirect=["installed"],
)
def test_an_adapter_that_cannot_be_used_says_why(installed: tuple[str, str], words: str) -> None:
    name, module = installed
    with pytest.raises(AdapterBrokenError, match=words) as raised:
        loader.site_adapter(name)
    assert f"site adapter `{name}` ({module}:Cloud)" in str(raised.value)


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
