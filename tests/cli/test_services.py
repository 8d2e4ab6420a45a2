"""Inference services as a list and explained, from the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner import model as m
from provisioner.answers.drones import state_limit
from provisioner.reasons import LimitReached, ModelUnknown, OwnerWaits, SeenInPool
from provisioner.store.measures import gauges
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.cli.conftest import CONTROLLER, NOW, PLAIN, POLICY, Ran, _look, forget_moment

Cli = Callable[..., Ran]
TRITON = m.DroneType(
    "topas",
    "triton",
    1000,
    8,
    20480,
    51200,
    server=m.InferenceServer("cms", ("deepmet:3", "particlenet:1"), "tritonserver"),
)
SERVICES = (m.Service("cms", at_most=2), m.Service("dune"))
DEMAND = m.ServiceView(
    "cms",
    requests=3000,
    refused=12,
    requested_at=NOW - 20,
    requests_per_s=101.25,
    in_flight=6,
    queued=3,
    request_s=0.0304,
    by_vo={"cms": 2900, "cms-hi": 100},
    models=(m.ModelUse("deepmet:3", 2800, 14.0, 84.0),),
)
CALLS = replace(PLAIN, id="3f2a91c07be4d856", inference=("deepmet:3",))
OTHERS = replace(
    PLAIN,
    id="3f2b91c07be4d856",
    inference=("nosuch:1", "deepmet"),
    owner="bob",
    job_ids="301.0",
    running_ids="300.0",
)
FULL = LimitReached("at_most", "service cms", 2, 2)


def server(serial: int, state: m.DroneState, **known: object) -> m.Drone:
    drone = m.Drone(
        m.DroneId(f"kit-ab12-{serial}"), TRITON.key, state, NOW - 60, NOW - 90, 1000, service="cms"
    )
    return replace(drone, **known)  # type: ignore[arg-type]


@pytest.fixture
async def served(tmp_path: Path) -> Path:
    """A record with two services: one with demand for more servers than it may have, one without."""
    path = tmp_path / "served.db"
    drones = [
        server(1, m.DroneState.BUSY, jobs=6, node="w1", joined_at=NOW - 60, started_at=NOW - 80),
        server(2, m.DroneState.BOOTING, started_at=NOW - 10),
    ]
    async with SqlStore(path, CONTROLLER, 1e9, 10, threaded=False) as store:
        seen = _look(store, NOW, (), {})
        assert seen.overlay.view is not None
        view = replace(seen.overlay.view, classes=(CALLS, OTHERS))
        seen = replace(
            seen,
            overlay=replace(seen.overlay, view=view),
            policy=replace(POLICY, services=SERVICES),
            types=(*seen.types, TRITON),
            services=m.PolledServices(m.ServicesView(NOW - 1, (DEMAND,))),
        )
        moves = tuple(m.StateChange(each, None, SeenInPool("idle", 0, 1.0)) for each in drones)
        states = m.ServiceState("cms", wanted=2, needed=4), m.ServiceState("dune")
        refusal = m.Refusal(m.Subject("service", "cms"), 2, FULL)
        of_others = m.Subject("class", OTHERS.id)
        refusals = (
            refusal,
            m.Refusal(of_others, 0, ModelUnknown("nosuch:1")),
            m.Refusal(of_others, 5, OwnerWaits("topas", 3, 4)),
        )
        plan = m.Plan(seen.tick, NOW, moves=moves, refusals=refusals, services=states)
        await store.record(plan, seen)
        await store.record_sample(NOW, gauges(seen, (), plan, NOW))
    forget_moment(path)
    return path


async def test_each_service_has_its_servers_its_demand_and_the_reason(
    cli: Cli, served: Path
) -> None:
    cms, dune = cli("services", "-o", "json", "--store", served).json["items"]
    found = {key: cms[key] for key in ("service", "serving", "starting", "draining", "needed")}
    assert found == {"service": "cms", "serving": 1, "starting": 1, "draining": 0, "needed": 4}
    assert (cms["requests_per_s"], cms["in_flight"], cms["queued"]) == (101.25, 6, 3)
    assert (cms["refused"], cms["request_s"], cms["requests"]) == (12, 0.03, 3000)
    assert cms["requested_s"] == pytest.approx(20, abs=30)
    assert cms["why"] == FULL.describe() and cms["reasons"][0]["kind"] == "limit-reached"
    assert (dune["wanted"], dune["request_s"], dune["why"]) == (0, None, "no demand")
    table = cli("services", "--store", served)
    assert "2 services" in table.err and "30 ms" in table.out and "101.2" in table.out
    assert cli("services", "-o", "name", "--store", served).lines == ["cms", "dune"]


async def test_a_service_is_explained_with_servers_models_vos_and_announcing_jobs(
    cli: Cli, served: Path
) -> None:
    found = cli("explain", "service", "cms", "-o", "json", "--store", served).json
    assert [each["text"] for each in found["said"]] == [FULL.describe()]
    assert [(each["id"], each["state"], each["jobs"]) for each in found["servers"]] == [
        ("kit-ab12-1", "busy", 6),
        ("kit-ab12-2", "booting", 0),
    ]
    deepmet, particlenet = found["models"]
    assert deepmet["types"] == ["topas/triton"] and deepmet["requests"] == 2800
    assert (deepmet["queue_s"], deepmet["compute_s"], deepmet["mean_s"]) == (14.0, 84.0, 0.03)
    assert (particlenet["model"], particlenet["requests"]) == ("particlenet:1", 0)
    assert {each["vo"]: each["requests"] for each in found["vos"]} == {"cms": 2900, "cms-hi": 100}
    assert [(each["id"], each["models"]) for each in found["jobs"]] == [
        (CALLS.id, ["deepmet:3"]),
        (OTHERS.id, ["nosuch:1", "deepmet"]),
    ]
    by_id = cli("explain", "cms", "-o", "json", "--store", served).json
    assert (by_id["schema"], by_id["models"]) == (found["schema"], found["models"])
    shown = cli("explain", "service", "cms", "--store", served)
    assert "What the newest plan says" in shown.out and "Requests by VO" in shown.out
    missing = cli("explain", "service", "cns", "--store", served)
    assert missing.code and "cms" in missing.err


async def test_the_drone_of_a_server_names_its_service_and_has_no_idle_limit(
    cli: Cli, served: Path
) -> None:
    found = cli("drones", "show", "kit-ab12-1", "-o", "json", "--store", served).json
    assert found["service"] == "cms"
    idle = server(3, m.DroneState.IDLE, idle_at=NOW - 50)
    views = Reader(served).views()
    assert state_limit(idle, views).then == ""
    assert "release it" in state_limit(replace(idle, service=""), views).then


async def test_an_unknown_model_is_named_and_is_not_what_a_job_waits_for(
    cli: Cli, served: Path
) -> None:
    unknown = ModelUnknown("nosuch:1").describe()
    said = cli("explain", "job", "301.0", "-o", "json", "--store", served).json["said"]
    texts = [each["text"] for each in said]
    assert texts[0] == OwnerWaits("topas", 3, 4).describe() and unknown in texts
    running = cli("explain", "job", "300.0", "-o", "json", "--store", served).json["said"]
    assert running.endswith("It announces nosuch:1, which no service has")
    views = Reader(served).views()
    assert views is not None
    (plan,) = Reader(served).plans(limit=1)
    waiting = {
        dict(key.labels)["category"]: n
        for key, n in gauges(views, (), plan, NOW).items()
        if key.metric == "provisioner_jobs_waiting"
    }
    assert waiting.get("configuration", 0) == 0 and waiting["waiting-site"] == 5


async def test_without_services_the_list_is_empty(cli: Cli, record: Path) -> None:
    ran = cli("services", "--store", record)
    assert ran.code == 0 and "0 services" in ran.err
