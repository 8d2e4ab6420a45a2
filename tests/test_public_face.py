"""Citation, metadata, requirements and forms of the project agree with pyproject.toml."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from provisioner import __version__

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
ADDRESS = PROJECT["urls"]["Source"]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read_yaml(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return read


def test_the_citation_agrees_with_the_project() -> None:
    citation = read_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["message"]
    assert citation["version"] == __version__
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == ADDRESS
    assert citation["abstract"] == PROJECT["description"]
    assert citation["keywords"] == PROJECT["keywords"]
    assert [each["name"] for each in citation["authors"]] == [a["name"] for a in PROJECT["authors"]]


def test_codemeta_agrees_with_the_project() -> None:
    codemeta = json.loads((ROOT / "codemeta.json").read_text())
    assert codemeta["identifier"] == PROJECT["name"]
    assert codemeta["version"] == __version__
    assert codemeta["description"] == PROJECT["description"]
    assert codemeta["keywords"] == PROJECT["keywords"]
    assert codemeta["license"].endswith(f"/{PROJECT['license']}")
    assert codemeta["runtimePlatform"].endswith(PROJECT["requires-python"])
    assert [a["name"] for a in codemeta["author"]] == [a["name"] for a in PROJECT["authors"]]
    urls = [codemeta[key] for key in ("codeRepository", "issueTracker", "softwareHelp")]
    assert urls == [PROJECT["urls"][name] for name in ("Source", "Issues", "Documentation")]


def test_addresses_of_the_project_are_those_of_pyproject() -> None:
    """Links to files of the repository lead to files that exist."""
    readme = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    texts = [path.read_text() for path in (ROOT / ".github").rglob("*.yml")]
    texts += [(ROOT / name).read_text() for name in ("CITATION.cff", "codemeta.json")]
    texts += [each["replacement"] for each in readme["substitutions"]]
    found = re.findall(r"https://example\.org[^\s\"')]*", " ".join(texts))
    assert found and all(each.startswith(ADDRESS) for each in found)
    for path in re.findall(rf"{ADDRESS}/blob/main/([\w./-]+)", " ".join(texts)):
        assert (ROOT / path).is_file(), path


def test_links_of_the_package_page_lead_to_the_repository() -> None:
    command = [sys.executable, "-m", "hatch_fancy_pypi_readme"]
    page = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    links = re.findall(r"\]\(([^)\s]+)", page) + re.findall(r'src(?:set)?="([^"]+)"', page)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_the_shape_that_the_host_reads(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert form["contact_links"] and all(
            set(link) == {"name", "url", "about"} for link in form["contact_links"]
        )
        return
    jsonschema.validate(form, FORM)
    ids = [each["id"] for each in form["body"]]
    assert len(ids) == len(set(ids))


def test_a_report_needs_adapter_version_and_status() -> None:
    form = read_yaml(".github/ISSUE_TEMPLATE/bug.yml")
    needed = {each["id"] for each in form["body"] if each.get("validations", {}).get("required")}
    assert needed >= {"what", "adapter", "version", "status"}
    adapters = next(each for each in form["body"] if each["id"] == "adapter")
    offered = " ".join(adapters["attributes"]["options"])
    for group in PROJECT["entry-points"].values():
        assert [name for name in group if name not in offered] == []


FIELD = {
    "type": "object",
    "required": ["type", "id", "attributes"],
    "additionalProperties": False,
    "properties": {
        "type": {"enum": ["input", "textarea", "dropdown", "checkboxes", "markdown"]},
        "id": {"type": "string", "pattern": "^[a-z_-]+$"},
        "validations": {
            "properties": {"required": {"type": "boolean"}},
            "additionalProperties": False,
        },
        "attributes": {
            "type": "object",
            "required": ["label"],
            "additionalProperties": False,
            "properties": {
                "label": {"type": "string"},
                "description": {"type": "string"},
                "placeholder": {"type": "string"},
                "render": {"type": "string"},
                "multiple": {"type": "boolean"},
                "options": {
                    "type": "array",
                    "minItems": 1,
                    "uniqueItems": True,
                    "items": {"type": "string"},
                },
            },
        },
    },
}
FORM = {
    "type": "object",
    "required": ["name", "description", "body"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "description": {"type": "string"},
        "labels": {"type": "array", "items": {"type": "string"}},
        "body": {"type": "array", "minItems": 1, "items": FIELD},
    },
}
"""The parts of GitHub's syntax for issue forms that ours use."""


def test_requirement_files_have_hashes_and_no_address_of_a_registry() -> None:
    paths = sorted((ROOT / "requirements").glob("*.txt"))
    assert {path.stem for path in paths} == {"all", "build", "dev", "runtime", "tools"}
    pinned: dict[str, str] = {}
    for path in paths:
        text = path.read_text()
        assert not re.search(r"://|^--?(i|index|extra|find)", text, re.MULTILINE), path
        pins = text.replace("\\\n", "").splitlines()[1:]
        assert [pin for pin in pins if " --hash=sha256:" not in pin] == []
        for pin in pins:
            name, _, rest = pin.partition("==")
            version = rest.split("--hash")[0].strip()
            assert pinned.setdefault(name + version.partition(" ")[2], version) == version


def test_the_constraints_are_the_locked_versions() -> None:
    locked = [
        line.removesuffix("\\").strip()
        for name in ("dev", "build")
        for line in (ROOT / f"requirements/{name}.txt").read_text().splitlines()
        if "==" in line and not line.startswith(" ")
    ]
    constraints = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    assert sorted(constraints) == sorted({*locked})


def test_hooks_of_a_commit_have_the_versions_of_the_linters() -> None:
    locked = (ROOT / "requirements/dev.txt").read_text()
    repositories = read_yaml(".pre-commit-config.yaml")["repos"]
    revisions = {each["repo"].rpartition("/")[2]: each.get("rev") for each in repositories}
    for repository, name in (
        ("ruff-pre-commit", "ruff"),
        ("codespell", "codespell"),
        ("reuse-tool", "reuse"),
    ):
        assert f"\n{name}=={revisions[repository].removeprefix('v')} " in locked


def test_locked_versions_satisfy_the_project() -> None:
    from packaging.requirements import Requirement

    text = "".join(path.read_text() for path in (ROOT / "requirements").glob("*.txt"))
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *PYPROJECT["build-system"]["requires"]]
    wanted += [
        each for name in extras if name not in ("all", "slurm-native") for each in extras[name]
    ]
    groups = PYPROJECT["dependency-groups"].values()
    wanted += [each for group in groups for each in group if isinstance(each, str)]
    for each in map(Requirement, wanted):
        assert each.specifier.contains(locked[each.name.lower().replace("_", "-")]), each
