"""What becomes of TARDIS's pool and plugins, and of COBalD's pipeline."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from provisioner.config.strict_yaml import YamlDocument
from provisioner.migrate import ImportOutcome, ImportResult
from provisioner.migrate.source import read as read_yaml
from tests.migrate.examples import ALL, HTCONDOR, about, converted


def controller(made: ImportResult) -> Any:
    return yaml.safe_load(made.files["provisioner.yaml"])


@pytest.mark.parametrize(
    ("pool", "collector"),
    [
        ("pool.example.org", "pool.example.org:9618"),
        ("pool.example.org:9620", "pool.example.org:9620"),
        ('"cm1.example.org, cm2.example.org"', "cm1.example.org:9618,cm2.example.org:9618"),
    ],
)
def test_the_pool_is_its_collector(pool: str, collector: str) -> None:
    made = converted(HTCONDOR.replace("pool: pool.example.org", f"pool: {pool}"))
    assert controller(made)["overlay"]["options"]["collector"] == collector
    assert about(made, "BatchSystem.options.pool") == [
        (ImportOutcome.CONVERTED, 7, "provisioner.yaml: overlay.options.collector")
    ]


def test_what_tardis_left_to_the_host_needs_you() -> None:
    made = converted(HTCONDOR.replace("  options:\n    pool: pool.example.org\n", ""))
    options = controller(made)["overlay"]["options"]
    assert {key for key, value in options.items() if value.startswith("<")} == set(options)
    needed = [
        f.ours
        for f in made.findings
        if f.verdict is ImportOutcome.NEEDED and f.key == "BatchSystem"
    ]
    assert needed == [f"provisioner.yaml: overlay.options.{key}" for key in options]


def leaves(told: Any, path: str) -> list[tuple[str, int]]:
    """Dotted keys of all plain values, with their lines."""
    if isinstance(told.value, dict) and told.value:
        return [
            x
            for key, one in told.value.items()
            for x in leaves(one, f"{path}.{key}" if path else key)
        ]
    if isinstance(told.value, list) and any(isinstance(one.value, dict) for one in told.value):
        return [x for n, one in enumerate(told.value) for x in leaves(one, f"{path}[{n}]")]
    return [(path, told.line)]


@pytest.mark.parametrize("name", ALL)
def test_every_key_of_theirs_is_told_of_by_itself_or_with_what_is_around_it(name: str) -> None:
    made = converted(ALL[name])
    reading = read_yaml(ALL[name], YamlDocument("tardis.yml"))
    assert reading is not None
    told = {f.key.partition(" ")[0] for f in made.findings}
    untold = [
        (path, line)
        for path, line in leaves(reading[0], "")
        if not any(
            path == key or path.startswith((f"{key}.", f"{key}[")) or key.startswith(f"{path}.")
            for key in told
        )
    ]
    assert untold == []


def test_a_key_that_nobody_knows_is_told_of() -> None:
    text = (
        HTCONDOR.replace("  max_age: 1\n  MachineTypes", "  max_agee: 1\n  MachineTypes")
        + "Elsewhere: {a: 1}\n"
    )
    made = converted(text)
    assert about(made, "TOPAS.max_agee") == [(ImportOutcome.DROPPED, 13, "")]
    assert about(made, "Elsewhere")[0][0] is ImportOutcome.DROPPED


@pytest.mark.parametrize(
    "value",
    ["!include secrets.yml", "!!python/object/apply:os.system ['touch hacked']", "!env QUOTA"],
)
def test_a_tag_that_is_not_tardiss_is_told_of_and_runs_nothing(
    value: str, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    made = converted(HTCONDOR.replace("Cores: 42", f"Cores: {value}"))
    tag = value.partition(" ")[0]
    assert about(made, tag) == [(ImportOutcome.NEEDED, 25, "")]
    assert (
        yaml.safe_load(made.files["site_configs/topas.yaml"])["types"]["whole"]["cpus"]
        == "<CPU cores of one drone>"
    )
    assert list(tmp_path.iterdir()) == []
