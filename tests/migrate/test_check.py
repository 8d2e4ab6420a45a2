"""What is imported passes `provisioner check`, but for what is marked as the operator's, at whose line it complains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioner.config import Problem, check
from provisioner.loader import SITES, adapter_names
from provisioner.migrate import ImportOutcome
from tests.migrate.examples import ALL, COBALD, HTCONDOR, converted, written

MARK = re.compile(r'"<.*>"')


def marked(path: Path) -> set[tuple[str, int]]:
    """Lines with a value that the operator is to fill in, and those that name an adapter that is not there."""
    found = set()
    for file in [path, *path.parent.glob("site_configs/*.yaml")]:
        lines = file.read_text().splitlines()
        adapter = next((x.partition(": ")[2] for x in lines if x.startswith("adapter: ")), "local")
        # Without its adapter nobody can judge the options of a site.
        options = next((n for n, line in enumerate(lines) if line.startswith("options:")), 0)
        judged = lines if adapter in adapter_names(SITES) else lines[:options]
        for number, line in enumerate(judged, 1):
            if MARK.search(line) or (
                line == f"adapter: {adapter}" and adapter not in adapter_names(SITES)
            ):
                found.add((file.name, number))
    return found


def complained(problems: list[Problem]) -> set[tuple[str, int]]:
    return {(Path(p.file).name, p.line) for p in problems}


@pytest.mark.parametrize("name", ["htcondor", "slurm", "clouds", "openstack"])
def test_check_complains_of_each_mark_and_of_nothing_else(name: str, tmp_path: Path) -> None:
    made = converted(ALL[name], COBALD, installed=adapter_names(SITES))
    path = written(made, tmp_path)
    problems = check(path).problems
    assert complained(problems) == marked(path), "\n".join(map(str, problems))


def test_check_complains_of_what_templates_left_open(tmp_path: Path) -> None:
    template = "requirements = ${Foo}\naccounting_group = ${Bar}\n+X = ${Baz}\nrequest_gpus = 1\n"
    made = converted(HTCONDOR, files={"gpu.jdl": template}, installed=adapter_names(SITES))
    path = written(made, tmp_path)
    problems = check(path).problems
    assert complained(problems) == marked(path), "\n".join(map(str, problems))
    text = (tmp_path / "site_configs" / "topas.yaml").read_text()
    # three of the template; its vram and capability; the template that is missing
    assert len(MARK.findall(text)) == 6


@pytest.mark.parametrize("name", ["htcondor", "slurm", "clouds", "openstack"])
def test_each_mark_has_a_finding_that_says_what_to_write(name: str) -> None:
    made = converted(ALL[name])
    for file, text in made.files.items():
        keys = [line.strip().partition(":")[0] for line in text.splitlines() if MARK.search(line)]
        needed = [
            f.ours.rpartition(".")[2].rpartition(" ")[2]
            for f in made.findings
            if f.verdict is ImportOutcome.NEEDED and f.ours.startswith(f"{file}:")
        ]
        assert [key for key in keys if keys.count(key) > needed.count(key)] == []
