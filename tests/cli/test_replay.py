"""A saved production snapshot decides the same again, byte for byte, or tells what it would do otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.answers.errors import Exit
from provisioner.cli.plan import read_snapshot, snapshot_text
from provisioner.model import CompletedJob, DroneId, Group, Plan, Snapshot
from provisioner.planner import decide
from provisioner.serialization import from_json, to_json
from tests.cli.conftest import NOW, Cli

DONE = CompletedJob(
    "s#1.0",
    NOW - 60,
    NOW - 900,
    600.0,
    200,
    1,
    2048,
    owner="ann",
    group="group_a",
    drone_id=DroneId("k-a-1"),
)


@pytest.fixture
def saved(on: Cli, tmp_path: Path) -> Path:
    """A snapshot as ``provisioner snapshot`` writes it, with all that a pool may tell."""
    path = tmp_path / "snapshot.json"
    assert on("snapshot", "--to", path).code == Exit.OK
    snapshot = read_snapshot(path)
    view = snapshot.overlay.view
    assert view is not None
    classes = tuple(
        replace(each, group="group_a", duty_milli=120, width_milli=500) for each in view.classes
    )
    slots = tuple(
        replace(slot, owner="alice", begun_at=NOW - 500.25, job_cpus=8) for slot in view.slots
    )
    full = replace(
        view,
        classes=classes,
        slots=slots,
        completions=(DONE,),
        groups=(Group("group_a", 4000, 1000, False, 0.5),),
    )
    types = tuple(replace(kind, shares=4, power_w=300.5) for kind in snapshot.types)
    path.write_text(
        snapshot_text(replace(snapshot, types=types, overlay=replace(snapshot.overlay, view=full)))
    )
    return path


def test_a_snapshot_is_read_as_it_was_written_and_decides_the_same_byte_for_byte(
    on: Cli, saved: Path
) -> None:
    snapshot = read_snapshot(saved)
    assert snapshot_text(snapshot) == saved.read_text()
    assert snapshot.overlay.view is not None and snapshot.overlay.view.completions == (DONE,)
    plan = decide(snapshot)
    assert from_json(Snapshot, to_json(snapshot)) == snapshot
    assert to_json(decide(from_json(Snapshot, to_json(snapshot)))) == to_json(plan)
    assert from_json(Plan, to_json(plan)) == plan
    told = [on("replay", saved, "-o", "json").out for _ in range(2)]
    assert told[0] == told[1] and json.loads(told[0])["plan"] == json.loads(to_json(plan))


NEW = {
    "completions",
    "groups",
    "group",
    "duty_milli",
    "width_milli",
    "owner",
    "begun_at",
    "shares",
    "power_w",
}
NEW |= {"job_gpu_milli", "job_cpus", "job_memory_mib", "job_filter"}


def without(tree: Any, names: set[str]) -> Any:
    if isinstance(tree, dict):
        return {key: without(value, names) for key, value in tree.items() if key not in names}
    return [without(each, names) for each in tree] if isinstance(tree, list) else tree


def test_a_snapshot_of_an_older_program_still_loads(on: Cli, saved: Path) -> None:
    now = on("replay", saved, "-o", "json").json
    saved.write_text(json.dumps(without(json.loads(saved.read_text()), NEW)))
    again = on("replay", saved, "-o", "json")
    assert again.code == Exit.OK and again.json["plan"]["tick"] == now["plan"]["tick"]


CONFIG = """
controller: kit
store: {path: p.db}
overlay: {adapter: embedded, options: {path: q.db}}
sites: [topas.yaml, new.yaml]
policy: {idle_timeout: 10min}
"""
SITE = """
site: %s
adapter: local
limits: {max_drones: %d}
types:
  a100: {gpus: 1, gpu_model: A100, vram: 40 GiB, capability: 8.0, cpus: 8, memory: 20 GiB, disk: 50 GiB}
options: {directory: drones}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Another policy: TOpAS may have one more drone than it has, HoreKa is given up, and there is a new site."""
    path = tmp_path / "new" / "provisioner.yaml"
    path.parent.mkdir()
    path.write_text(CONFIG)
    for site, most in (("topas", 3), ("new", 5)):
        (path.parent / f"{site}.yaml").write_text(SITE % (site, most))
    return path


def test_another_policy_is_told_as_what_it_does_instead(on: Cli, saved: Path, config: Path) -> None:
    ran = on("replay", saved, "--policy", config, "-o", "json")
    assert ran.code == Exit.OK, ran.err
    assert ran.json["schema"] == "provisioner.plan-diff/1" and ran.json["same"] is False
    assert ran.json["before"] == on("replay", saved, "-o", "json").json["plan"]
    assert ran.json["before"] != ran.json["after"]
    told = {(item["action"], item["subject"]): item["before"] for item in ran.json["items"]}
    assert told["refuse", "site:new"] == 0, (
        "the refusal names the new site, and nothing starts there"
    )
    table = on("replay", saved, "--policy", config)
    assert "new: the snapshot has no view of it, so no drone starts there" in table.err
    assert "new/a100: the jobs' own requirements were never judged against it" in table.err
    assert "difference" in table.err and "instead of" in table.err
