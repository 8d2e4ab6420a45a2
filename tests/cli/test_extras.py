"""A verb that needs an extra says so in one line where the extra is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = (
    "aiohttp",
    "jinja2",
    "jwt",
    "prometheus_client",
    "matplotlib",
    "htcondor2",
    "classad2",
    "asyncssh",
)
WITHOUT = f"""
import sys
sys.modules.update(dict.fromkeys({PACKAGES}))
from provisioner.cli.__main__ import run_process
sys.exit(run_process(sys.argv[1:]))
"""
CONTROLLER = (
    "controller: kit\nstore: {path: record.db}\noverlay: {adapter: embedded}\nsites: [site.yaml]\n"
)
SITE = "site: a\nadapter: local\noptions: {gpus: fake}\ntypes: {one: {gpus: 1, cpus: 1, memory: 1 GiB}}\n"


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb where no extra is installed."""
    command = [sys.executable, "-c", WITHOUT, *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("words", "extra"),
    [("serve", "web")],
)
def test_a_verb_names_the_extra_that_it_needs(tmp_path: Path, words: str, extra: str) -> None:
    (tmp_path / "provisioner.yaml").write_text(CONTROLLER)
    (tmp_path / "site.yaml").write_text(SITE)
    (tmp_path / "t.csv").write_text("submit_s,duration_s\n0,60\n")
    verb, *rest = words.split()
    done = run(tmp_path, verb, *(["t.csv"] if verb == "simulate" else []), *rest)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    told = [line for line in done.stderr.splitlines() if "install the extra" in line]
    assert len(told) == 1 and f"`{extra}`" in told[0], done.stderr
    assert not (tmp_path / "x.html").exists(), "nothing is begun"


def test_dashboards_need_no_extra(tmp_path: Path) -> None:
    (tmp_path / "provisioner.yaml").write_text(CONTROLLER)
    (tmp_path / "site.yaml").write_text(SITE)
    done = run(tmp_path, "render", "grafana", "--to", "boards")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "boards").glob("*.json"))) == 5


ALL = """
import sys
sys.modules.update(dict.fromkeys({packages}))
from provisioner.cli.__main__ import VERBS, run_verb
for verb in VERBS:
    if verb not in ("run", "demo", "serve"):  # they do not end
        run_verb([verb])
"""


def test_no_other_verb_needs_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALL.format(packages=PACKAGES)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "install the extra" not in done.stderr, done.stderr


def test_an_adapter_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(
        "site: a\nadapter: kubernetes\ntypes: {one: {gpus: 1, cpus: 1, memory: 1 GiB}}\n"
    )
    done = run(tmp_path, "check", "site.yaml")
    assert "install the extra `kubernetes`" in done.stdout + done.stderr, done
