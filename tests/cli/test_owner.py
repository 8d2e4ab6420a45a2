"""An owner's cluster on the command line: nodes, claims, what is kept, what was taken back, and CPU drones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from provisioner import model as m
from provisioner.cli.options import Exit
from provisioner.cli.schema import output_schemas
from provisioner.planner import decide
from provisioner.reasons import JobsWaiting, Preempted
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.cli.conftest import CONTROLLER, NOW, Cli, copied, snapshot_of

SCHEMAS = output_schemas()
HOUR, DAY = 3600.0, 86400.0
GIB = 1024

A100 = m.DroneType("topas", "a100", 1000, 8, 20 * GIB, 50 * GIB, vram_mib=40 * GIB, gpu_model="A100")
CPU = m.DroneType("topas", "cpu", 0, 16, 32 * GIB, 50 * GIB)
LOCAL = m.DroneType("local", "one", 1000, 1, GIB, GIB)
KEEPS = m.Reserve(("topas-a100-*",), 8, 20 * GIB, 0, m.ReserveWhen.GPU_DEMAND, 600.0)
POLICY = m.Policy(
    sites={"topas": m.SitePolicy("topas", max_drones=40, blocking=(KEEPS,)), "local": m.SitePolicy("local")}
)
LARGE = m.JobClass("7", 1000, 2, 4 * GIB, waiting=20, oldest_at=NOW - 600, owner="alice", job_ids="204.0-204.19")
CPU_ONLY = m.JobClass("8", 0, 16, 32 * GIB, waiting=30, oldest_at=NOW - 900, owner="bob", job_ids="205.0-205.29")

ONE, TWO, THREE = (f"topas-a100-{n}.example.org" for n in (1, 2, 3))


def _node(name: str, free_gpus: int, free_cpus: int, free_gib: int) -> m.Node:
    types = ("a100", "cpu")
    return m.Node(
        name, types, 8000, 192, 1024 * GIB, 2048 * GIB, free_gpus * 1000, free_cpus, free_gib * GIB, 1024 * GIB
    )


NODES = (_node(TWO, 0, 60, 500), _node(ONE, 3, 24, 60), _node(THREE, 0, 0, 0))
CLAIMS = (
    m.OwnerDemand(2, 3000, 24, 100 * GIB, NOW - 95, nodes=(ONE, TWO, THREE), who="etp/anna"),
    m.OwnerDemand(1, 0, 8, 16 * GIB, NOW - 30, who="etp/bert"),
)


def drone(serial: int, state: m.DroneState, kind: m.DroneType = A100, **known: object) -> m.Drone:
    made = m.Drone(m.DroneId(f"kit-ab12-{serial}"), kind.key, state, NOW - HOUR, NOW - 2 * HOUR, kind.gpu_milli)
    return replace(made, **known)  # type: ignore[arg-type]


def _running(serial: int, kind: m.DroneType, node: str, place: int, **known: object) -> m.Drone:
    since = dict.fromkeys(("started_at", "joined_at", "busy_at"), NOW - 10 * HOUR)
    ids = {"site_slot": f"slot1_{place}@{node}", "remote_id": f"88.{serial}", "slot": f"slot1@kit-ab12-{serial}"}
    return drone(serial, m.DroneState.BUSY, kind, node=node, jobs=1, jobs_started=3, **since, **ids, **known)


WORKS = _running(1, A100, ONE, 1, work_gpu_milli=1000, work_at=NOW - 120)
CPUS = _running(2, CPU, TWO, 2, work_gpu_milli=16000, work_at=NOW - 60)
TOLD = _running(3, A100, TWO, 3, notice_at=NOW - 4)
GONE = _running(4, A100, TWO, 4, notice_at=NOW - 2 * DAY - 9, lost_gpu_s=7200.0, lost_jobs=2)
GONE_TODAY = _running(5, CPU, THREE, 5, notice_at=NOW - HOUR - 3, lost_gpu_s=960.0, lost_jobs=1)


def _ended(was: m.Drone, at: float) -> m.StateChange:
    after = replace(was, state=m.DroneState.PREEMPTED, since=at, ended_at=at, started_at=at - 5 * HOUR, jobs=0)
    reason = Preempted("the owner's job took its place", at - was.notice_at, 30.0, was.lost_gpu_s, was.lost_jobs)
    return m.StateChange(after, was.state, reason)


async def _unseen(path: Path) -> None:
    """No look at the cluster has ever succeeded."""
    async with SqlStore(path, CONTROLLER, keep_s=1e9, snapshots=10, birth="ab12") as store:
        looked = _look(store, NOW - 2)
        looked = replace(looked, sites=dict(looked.sites) | {"topas": m.PolledSite("topas")})
        await store.record(m.Plan(1, NOW - 2), looked)


async def _story(path: Path) -> None:
    async with SqlStore(path, CONTROLLER, keep_s=1e9, snapshots=10, birth="ab12") as store:
        all_of_them = (WORKS, CPUS, TOLD, GONE, GONE_TODAY)
        starts = tuple(m.Start(each, JobsWaiting("7", 20, 0, 5)) for each in all_of_them)
        looked = _look(store, NOW - 2 * DAY)
        await store.record(m.Plan(1, NOW - 2 * DAY, starts=starts), looked)
        await store.record_results(1, (_ended(GONE, NOW - 2 * DAY), _ended(GONE_TODAY, NOW - HOUR)), ())
        last = _look(store, NOW - 2)
        plan = decide(last)
        await store.record(m.Plan(2, NOW - 2, refusals=plan.refusals), last)


def _look(store: SqlStore, at: float) -> m.Snapshot:
    living = (WORKS, CPUS, TOLD)
    remotes = {}
    for d in living:
        known = {"started_at": d.started_at, "node": d.node, "slot": d.site_slot, "notice_at": d.notice_at}
        kind = d.type.partition("/")[2]
        remotes[d.id] = m.RemoteDrone(d.id, m.RemoteState.RUNNING, d.remote_id, kind, **known)
    slots = tuple(m.Slot(d.id, m.SlotState.BUSY, at - 1, jobs=1, name=d.slot) for d in living)
    topas = m.SiteView("topas", at - 1, remotes, None, NODES, CLAIMS, m.OwnerLoad(4, 10_000, 40, 400 * GIB))
    overlay = m.OverlayView(at - 1, (LARGE, CPU_ONLY), slots, at - 20)
    sites = (m.PolledSite("topas", topas), m.PolledSite("local", m.SiteView("local", at - 1, {}, {"one": 2})))
    return snapshot_of(store, at, overlay, *sites, policy=POLICY, types=(A100, CPU, LOCAL), gpu_wanted_at=at)


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "provisioner.db"
    asyncio.run(_story(path))
    return path


@pytest.fixture
def at(cli: Cli, _cluster: Path) -> Cli:
    """Run one command line against the record of the cluster."""
    return lambda *words, **more: cli(*words, "--store", _cluster, **more)


# --------------------------------------------------------------------------------------------------------------- drones


def test_drones_are_chosen_by_node_and_found_by_their_place(at: Cli, cli: Cli, _cluster: Path, tmp_path: Path) -> None:
    assert at("drones", "--node", TWO, "-o", "name").lines == ["kit-ab12-2", "kit-ab12-3"]
    assert at("drones", "--node", "topas-a100-2", "--type", "cpu", "-o", "name").lines == ["kit-ab12-2"]
    assert "node topas-a100-9" in at("drones", "--node", "topas-a100-9").err
    assert at("drones", "show", f"slot1_3@{TWO}", "-o", "json").json["id"] == "kit-ab12-3"
    own = copied(_cluster, tmp_path / "own.db")
    ran = cli("drones", "drain", "--node", "topas-a100-2", "--reason", "kernel", "--yes", "--store", own)
    assert ran.code == Exit.OK
    found = Reader(own).snapshot()
    assert found is not None and [r.drone_ids for r in found.requests] == [("kit-ab12-2", "kit-ab12-3")]


def test_a_drone_tells_what_is_at_risk_and_what_its_end_has_cost(at: Cli) -> None:
    works, told, gone, cpu = (" ".join(at("drones", "show", serial).out.split()) for serial in ("1", "3", "4", "5"))
    assert f"node {ONE}" in works and f"slot at the site slot1_1@{ONE}" in works
    assert "work at risk" in works and "GPU-seconds" in works
    assert at("drones", "show", "1", "-o", "json").json["at_risk_gpu_s"] >= 120, "its job began two minutes ago"
    assert "asked to leave" in told and "so far" in told and "work lost" not in told
    assert "grace used 9 s" in gone and "work lost 2 jobs, 7200 GPU-seconds" in gone and "at risk" not in gone
    assert "taken back for the owner 9 s after the notice (of 30 s), 2 jobs, 7200 GPU-seconds lost" in gone
    assert "work lost 1 job, 960 CPU-seconds" in cpu and "gpus 0" in cpu
    item = at("drones", "show", "4", "-o", "json").json
    assert (item["grace_used_s"], item["lost_gpu_s"], item["lost_jobs"], item["at_risk_gpu_s"]) == (9.0, 7200.0, 2, 0.0)
    assert "lost 2 jobs, 7200 GPU-seconds" in " ".join(at("drones", "--ended", "-o", "wide").out.split())


# ---------------------------------------------------------------------------------------------------------------- sites


def test_sites_tells_of_the_owner_and_of_what_was_taken_back(at: Cli) -> None:
    items = {i["site"]: i for i in at("sites", "-o", "json").json["items"]}
    topas = items["topas"]
    owner = ("claims", "claims_gpu_milli", "owner_jobs", "owner_gpu_milli")
    assert [topas[key] for key in owner] == [3, 6000, 4, 10_000]
    assert (topas["free_gpu_milli"], topas["node_gpu_milli"]) == (3000, 24_000)
    assert (topas["preempted"], topas["lost_gpu_s"], topas["lost_cpu_s"], topas["hazard_s"]) == (2, 7200, 960, 7 * DAY)
    assert topas["life_median_s"] == 5 * HOUR and topas["grace_mean_s"] == 6.0
    assert topas["per_1000_h"] == pytest.approx(1000 * 2 / 40, rel=0.01), "five and ten hours of five drones"
    none = ("free_gpu_milli", "node_gpu_milli", "owner_jobs", "preempted", "per_1000_h", "lost_gpu_s")
    assert [items["local"][key] for key in none] == [None] * 6, "nothing told, nothing ran"
    wide = " ".join(at("sites", "-o", "wide").out.split())
    assert "3 of 24 GPUs" in wide and "2 one" in wide
    assert "3 jobs wait for 6 GPUs, 4 jobs run on 10 GPUs" in wide
    assert "2 (50 per 1000 h), 2 GPU-hours lost, 0.3 CPU-hours lost in 7d" in wide


def test_a_site_is_shown_node_by_node(at: Cli) -> None:
    tree = at("sites", "show", "topas", "-o", "json").json
    jsonschema.validate(tree, SCHEMAS["provisioner.site/1"], cls=jsonschema.Draft202012Validator)
    one, two, three = tree["nodes"]
    assert [n["node"] for n in (one, two, three)] == [ONE, TWO, THREE]
    assert (one["free_gpu_milli"], one["gpu_milli"], one["free_cpus"], one["cpus"]) == (3000, 8000, 24, 192)
    assert (one["kept_cpus"], one["kept_memory_mib"], one["kept_disk_mib"]) == (24, 60 * GIB, 0)
    assert (two["kept_cpus"], two["drones"]) == (0, ["kit-ab12-2", "kit-ab12-3"]), "no free GPU keeps nothing"
    assert (one["drones"], three["drones"]) == (["kit-ab12-1"], [])
    assert [(c["who"], c["jobs"], c["gpu_milli"], len(c["nodes"])) for c in tree["claims"]] == [
        ("etp/anna", 2, 3000, 3),
        ("etp/bert", 1, 0, 0),
    ]
    hazards = {h["scope"]: h for h in tree["hazards"]}
    assert (hazards["topas/a100"]["lost_gpu_s"], hazards["topas/a100"]["preempted"]) == (7200, 1)
    assert (hazards["topas/cpu"]["lost_gpu_s"], hazards["topas/cpu"]["lost_cpu_s"]) == (0, 960)
    text = " ".join(at("sites", "show", "topas").out.split())
    assert "24 CPU, 60 GiB" in text and "topas-a100-[1-3].example.org" in text.replace("- ", "-")
    rows = at("sites", "show", "topas", "-o", "csv", "--columns", "node,free_gpu_milli,kept_cpus").lines
    assert rows == ["node,free_gpu_milli,kept_cpus", f"{ONE},3000,24", f"{TWO},0,0", f"{THREE},0,0"]


def test_a_reserve_that_is_released_is_not_shown_as_kept(at: Cli, _cluster: Path) -> None:
    """As `sites show` reckons: no GPU job has waited for longer than the policy's ten minutes."""
    from provisioner.cli.sites import node_rows, site_rows

    reader = Reader(_cluster)
    (_, topas) = site_rows(reader.views(), {}, reader.drones())
    assert [row.kept_cpus for row in node_rows(topas, (), 599.0)] == [24, 0, 0]
    assert [row.kept_cpus for row in node_rows(topas, (), 600.0)] == [0, 0, 0]


def test_a_site_without_nodes_and_one_that_is_not_there(at: Cli) -> None:
    shown = at("sites", "show", "local")
    assert shown.code == Exit.OK and "Nodes (free of all): none" in shown.out
    wrong = at("sites", "show", "tpoas")
    assert wrong.code == Exit.FAILED and "did you mean `topas`?" in wrong.err
    assert "put --output after `sites show`" in at("sites", "-o", "json", "show", "topas").err


def test_a_site_that_was_never_seen_says_so_of_its_nodes_and_claims(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "unseen.db"
    asyncio.run(_unseen(path))
    shown = cli("sites", "show", "topas", "--store", path)
    assert shown.code == Exit.OK
    assert "Nodes (free of all): not known: the site was never seen" in shown.out
    assert "The owner's jobs that wait: not known: the site was never seen" in shown.out
    tree = cli("sites", "show", "topas", "-o", "json", "--store", path).json
    assert (tree["nodes"], tree["claims"], tree["hazards"]) == (None, None, [])
    jsonschema.validate(tree, SCHEMAS[tree["schema"]], cls=jsonschema.Draft202012Validator)


def test_a_site_that_is_not_on_record_has_no_drones_to_list_or_to_drain(at: Cli) -> None:
    for words in (["drones", "--site", "nosuch"], ["drones", "drain", "--site", "nosuch", "--reason", "x"]):
        ran = at(*words)
        assert (ran.code, ran.out) == (Exit.FAILED, "")
        assert "no site `nosuch` on record; known: local, topas" in ran.err
    assert "did you mean `topas`?" in at("drones", "--site", "tpoas").err
    assert at("drones", "--site", "local").code == Exit.OK


# -------------------------------------------------------------------------------------------------------------- explain
