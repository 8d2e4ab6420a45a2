"""Public CI: what its workflows call exists, and they publish nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def workflow(name: str) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as a boolean.
    read: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())
    return {"on" if key is True else key: value for key, value in read.items()}


def commands(name: str) -> list[str]:
    jobs = workflow(name)["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def targets(script: str) -> list[str]:
    """Return the make targets that a shell script names in commands of their own."""
    found = re.findall(r"^(?:.*&& )?make ((?:[a-z-]+ ?)+)$", script, re.MULTILINE)
    return [target for words in found for target in words.split()]


def test_workflows_call_targets_and_scripts_that_exist() -> None:
    called = []
    for path in WORKFLOWS:
        for command in commands(path.name):
            if (script := ROOT / command).is_file():
                assert script.stat().st_mode & 0o100
                command = script.read_text()
            called += targets(command)
    expected = {"lint", "types", "contracts", "unit", "test", "release", "audit", "docs"}
    assert expected == set(called)
    assert set(called) <= TARGETS


def test_unit_tests_run_with_the_versions_of_python_that_packages_support() -> None:
    settings = (ROOT / "packaging/settings.sh").read_text()
    supported = re.search(r'^PYTHONS="(.*?)"', settings, re.MULTILINE)[1].split()
    matrix = workflow("ci.yml")["jobs"]["unit"]["strategy"]["matrix"]
    assert matrix["python"] == supported


def test_a_release_is_made_for_a_tag_alone_and_attached_to_its_run() -> None:
    release = workflow("release.yml")
    assert release["on"] == {"push": {"tags": ["v*"]}}
    used = [step.get("uses", "") for step in release["jobs"]["files"]["steps"]]
    assert used[-1].startswith("actions/upload-artifact@")


def test_locked_versions_are_audited_each_week_and_when_they_change() -> None:
    events = workflow("audit.yml")["on"]
    assert events["schedule"] and events["push"]["paths"] == ["requirements/**"]
    assert commands("audit.yml") == ["make audit"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_can_read_only_and_know_no_secret(path: Path) -> None:
    read = workflow(path.name)
    assert read["permissions"] == {"contents": "read"}
    may_write = [name for name, job in read["jobs"].items() if "permissions" in job]
    assert may_write == (["deploy"] if path.name == "pages.yml" else [])
    assert "secrets." not in path.read_text()


def test_the_site_is_published_from_main_alone_and_nothing_depends_on_it() -> None:
    pages = workflow("pages.yml")
    assert pages["on"] == {"push": {"branches": ["main"]}}
    build, deploy = pages["jobs"]["build"], pages["jobs"]["deploy"]
    assert build["steps"][-2]["run"] == "make docs"
    assert build["steps"][-1]["with"]["path"] in (ROOT / "Makefile").read_text()
    # the job that may write runs none of our code
    assert deploy["permissions"] == {"pages": "write", "id-token": "write"}
    assert [step["uses"].partition("@")[0] for step in deploy["steps"]] == ["actions/deploy-pages"]
    assert not any("pages" in path.read_text() for path in WORKFLOWS if path.name != "pages.yml")


def test_scripts_of_a_release_upload_nothing() -> None:
    scripts = [ROOT / "Makefile", *(ROOT / "packaging").glob("*.sh")]
    for script in scripts:
        assert not re.search(r"twine upload|gh release|git push", script.read_text()), script


def test_make_lists_every_target() -> None:
    """`make` listed 20 of 33 targets, and not those that each commit has to pass."""
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert phony
    targets = set(phony[1].replace("\\\n", " ").split())
    assert len(targets) > 30
    assert targets == set(re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE))
