"""The template for adapters: a rendered package installs, is checked, and passes the contract suite."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import copier
import pytest

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "templates/site-adapter"
ANSWERS = {"name": "far-hosts", "author": "Jo"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("rendered") / "package"
    copier.run_copy(str(TEMPLATE), package, data=ANSWERS, defaults=True, quiet=True)
    return package


def run(package: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command where the package is installed, without a setting of ours."""
    path = os.pathsep.join([str(package.parent / "installed"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=package,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def installed(package: Path) -> Path:
    pip = ["pip", "-q", "--no-input", "install", "--no-deps", "--no-build-isolation"]
    done = run(package, *pip, "--target", package.parent / "installed", package)
    assert done.returncode == 0, done.stderr
    return package


def test_its_site_is_the_example_of_the_guide(package: Path) -> None:
    example = (ROOT / "docs/how-to/ssh_site.py").read_text()
    site = (package / "far_hosts_adapter/site.py").read_text()
    assert site == example.replace("SshSite", "FarHostsSite")


def test_its_code_passes_the_checks_that_it_brings(package: Path) -> None:
    ruff = run(package, "ruff", "check", ".")
    assert ruff.returncode == 0, ruff.stdout
    names = ("*.py", "*.md", "*.toml", "*.yaml", ".github/**/*.yml")
    texts = [path for name in names for path in package.rglob(name)]
    assert len(texts) > 6
    assert [path for path in texts if re.search(r"{{ |{% ", path.read_text())] == []


def test_the_provisioner_finds_it_and_accepts_its_example(installed: Path) -> None:
    checked = run(installed, "provisioner.cli", "check", "site.example.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    text = (installed / "site.example.yaml").read_text()
    (installed / "wrong.yaml").write_text(text.replace("host:", "hosts:"))
    wrong = run(installed, "provisioner.cli", "check", "wrong.yaml")
    assert wrong.returncode == 3 and "hosts" in wrong.stdout + wrong.stderr


@pytest.mark.slow
def test_it_passes_the_contract_suite(installed: Path) -> None:
    done = run(installed, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout and "failed" not in done.stdout
    assert done.stdout.count("SKIPPED") <= 2, done.stdout[-3000:]
