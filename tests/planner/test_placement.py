"""Drones that are started, where, and the reason why no more; the order of the types that fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner import model, reasons
from provisioner.cli.plan import read_snapshot
from provisioner.estimates import Estimates, run_keys
from provisioner.job_filter import JobFilter
from provisioner.planner import matching
from provisioner.planner.safeguards import safe_plan
from tests.planner import scenes
from tests.planner.scenes import (
    A100,
    NOW,
    QUAD,
    SMALL,
    V100,
    drone,
    jobs,
    plan_for,
    plan_of,
    slot_of,
    snapshot,
    started,
    story,
    tell,
)

S = model.DroneState
DATA = Path(__file__).parent / "data"
BUSY = drone("kit-ab12-1", S.BUSY)
AGED = drone("kit-ab12-1", S.IDLE)
RETIRES = [slot_of(AGED, retires_at=NOW + 600)]
SHORT_LIFE = replace(A100, walltime_s=600.0, margin_s=180.0)
UNSEEN = reasons.StaleView("site:topas", 1.0, 120.0, "connection refused")
SITE_FULL = reasons.SiteFull("topas/a100")


def unmet(dimension: str, asked: str, offered: str, kind: str = "topas/a100") -> list[object]:
    return [reasons.NothingFits(kind, dimension, asked, offered)]


@pytest.mark.parametrize(
    ("kinds", "refused", "given"),
    [
        story("no jobs", [], waiting=0),
        story("the cheapest type", [V100] * 3, waiting=3, types=(A100, V100)),
        story("VRAM", [A100], vram_mib=35000, types=(A100, V100)),
        # Eight fit by GPU share, two by RAM: ten jobs need five drones, not two.
        story("RAM binds", [A100] * 5, waiting=10, gpu_milli=125, cpus=1, memory_mib=10000),
        # Two GPUs hold two jobs of 0.6, not three.
        story(
            "a share lies on one device", [QUAD], types=(QUAD,), waiting=4, gpu_milli=600, cpus=1
        ),
        story("and no more", [QUAD] * 2, types=(QUAD,), waiting=5, gpu_milli=600, cpus=1),
        story(
            "hard classes come before easy ones take their drones",
            [V100, V100],
            classes=[jobs(waiting=2, id="a-easy"), jobs(id="z-hard", vram_mib=35000)],
            types=(A100, V100),
            drones=[drone("kit-ab12-1", S.BOOTING)],
        ),
        story(
            "only jobs that were negotiated",
            [],
            [reasons.AwaitingNegotiation(4)],
            waiting=0,
            fresh=4,
        ),
        # ---- supply
        *(
            story(
                f"{state} is supply",
                [],
                [reasons.DemandCovered(1, state is not S.IDLE)],
                drones=[each],
            )
            for state in (S.REQUESTED, S.SUBMITTED, S.QUEUED, S.BOOTING, S.IDLE)
            for each in [drone("kit-ab12-1", state)]
        ),
        story("a full drone is no supply", [A100], [], drones=[BUSY]),
        *(
            story(f"{state} is no supply", [A100], [], drones=[each])
            for state in (S.DRAINING, S.STOPPING)
            for each in [drone("kit-ab12-1", state, leaving=S.DONE, asked_at=NOW - 1, jobs=1)]
        ),
        story(
            "a CPU that is left is no room for a GPU job",
            [A100],
            [],
            cpus=1,
            memory_mib=100,
            drones=[BUSY],
            slots=[slot_of(BUSY, free_cpus=3, free_memory_mib=9000)],
        ),
        story("a short job", [], walltime_s=300.0, drones=[AGED], slots=RETIRES),
        story(
            "a job that outlives the drone", [A100], walltime_s=3600.0, drones=[AGED], slots=RETIRES
        ),
        story(
            "a drone of a class that has gone",
            [],
            drones=[drone("d-2", S.BOOTING, for_class="gone")],
        ),
        # ---- nothing fits
        story(
            "VRAM of none",
            [],
            unmet("vram", "80000 MiB", "40960 MiB"),
            vram_mib=80000,
            types=(V100, A100),
        ),
        story(
            "refused by the jobs",
            [],
            unmet("requirements", "HasCVMFS", "undefined"),
            classes=[
                jobs(
                    refuses={
                        A100.key: model.UnmetRequirement("requirements", "HasCVMFS", "undefined")
                    }
                )
            ],
        ),
        story("an invalid request", [], [reasons.BadRequest("ask for 1")], invalid="ask for 1"),
        story(
            "a billion GPUs",
            [],
            unmet("gpus", "1e+09", "4", QUAD.key),
            gpu_milli=10**12,
            types=(A100, QUAD),
        ),
        story("no type", [], unmet("type", "any", "no drone type is configured", ""), types=()),
        # ---- free capacity
        story("nothing is free", [], [SITE_FULL], free={"a100": 0}),
        story("a type that is not listed as free", [], [SITE_FULL], free={"v100": 4}),
        story(
            "the operator wants it queued",
            [A100],
            free={"a100": 0},
            limits={"queue_when_full": True},
        ),
        story(
            "two types on the same hardware",
            [A100] * 4,
            classes=[jobs(waiting=4, vram_mib=35000), jobs(waiting=4, id="other")],
            types=(A100, V100),
            free={"a100": 4, "v100": 4},
        ),
        *(
            story(
                f"{state} is promised its room",
                [A100],
                None,
                waiting=9,
                drones=waiting,
                free={"a100": 4},
            )
            for state in (S.REQUESTED, S.SUBMITTED, S.QUEUED)
            for waiting in [[drone(f"kit-ab12-{n}", state) for n in range(3)]]
        ),
        story(
            "a free site before a cheaper full one",
            [QUAD],
            types=(A100, QUAD),
            free={"a100": 0, "quad": 1},
        ),
        # ---- doubt
        story("a disabled site", [], [reasons.SiteDisabled("topas")], limits={"enabled": False}),
        story("an unseen site", [], [UNSEEN], site_fault=scenes.DOWN),
    ],
)
def test_starts_and_the_reason_why_no_more(
    kinds: list[model.DroneType], refused: list[object], given: dict[str, object]
) -> None:
    tell(kinds, refused, given)


def test_starts_have_new_ids_in_order_and_their_reason() -> None:
    plan = plan_for(waiting=3)
    assert [s.drone.id for s in plan.starts] == ["kit-ab12-42", "kit-ab12-43", "kit-ab12-44"]
    assert plan.starts[0].reason == reasons.JobsWaiting(
        "small", "1 GPU (small)", waiting=3, covered=0, starts=3
    )


def test_jobs_that_the_pool_would_match_with_no_slot_get_no_drone_and_are_told_why() -> None:
    for limited, kinds in ((3, [A100] * 2), (5, [])):
        given = {"waiting": 5, "limited": limited, "limit": "licence is used up"}
        tell(kinds, [reasons.PoolLimit("licence is used up")], given)


def test_a_job_that_is_longer_than_its_drone_takes_gets_a_misfit_with_numbers_and_no_drone() -> (
    None
):
    too_long = unmet("walltime", "500 s", "420 s of a walltime of 600 s")
    tell([], too_long, {"walltime_s": 500.0, "types": [SHORT_LIFE]})
    tell([SHORT_LIFE], [], {"walltime_s": 420.0, "types": [SHORT_LIFE]})


def test_an_old_view_of_the_overlay_starts_nothing() -> None:
    plan = plan_for(waiting=1, overlay_age_s=500.0)
    assert not plan.acts
    assert scenes.why(plan, "all") == [reasons.StaleView("overlay", 500.0, 120.0, "too old")]


def test_an_undrained_drone_takes_what_it_has_room_for_not_what_it_had_when_empty() -> None:
    busy = drone(
        "kit-ab12-1",
        S.DRAINING,
        QUAD,
        leaving=S.DONE,
        asked_at=NOW - 5,
        joined_at=NOW - 500,
        jobs=3,
    )
    slot = slot_of(
        busy, QUAD, state=model.SlotState.DRAINING, jobs=3, free_gpu_milli=1000, free_cpus=16
    )
    plan = plan_for(waiting=3, types=(QUAD,), drones=[busy], slots=[slot])
    assert [(d.mode, d.reason) for d in plan.drains] == [
        (model.DrainMode.RESUME, reasons.DemandReturned("small", "1 GPU (small)", 3))
    ]
    assert len(plan.starts) == 1, "two jobs are left for it"


def test_one_job_gets_one_drone_though_older_short_jobs_wait() -> None:
    """The drone on its way counted for the older class, which was not worth a start; one more came at every tick."""
    mine, _, _ = run_keys("short", SMALL.gpu_milli, 1, 500)
    short = jobs(
        id="short", owner="short", waiting=3, running=1, cpus=1, memory_mib=500, oldest_at=NOW - 500
    )
    long = jobs(
        id="long", owner="long", cpus=1, memory_mib=400, walltime_s=3600.0, oldest_at=NOW - 10
    )

    def tick(*coming: model.Drone) -> list[str]:
        snap = replace(
            scenes.snapshot(classes=[short, long], drones=[BUSY, *coming]),
            estimates=Estimates(runs={mine: (60.0,)}),
        )
        plan = plan_of(snap)
        covered = [
            each
            for each in scenes.why(plan, "class:long")
            if isinstance(each, reasons.DemandCovered)
        ]
        assert bool(covered) is not bool(plan.starts)
        return [s.drone.for_class for s in plan.starts]

    assert tick() == ["long"]
    for state in (S.SUBMITTED, S.BOOTING, S.IDLE):
        assert tick(drone("kit-ab12-2", state, for_class="long")) == []
    worked = drone("kit-ab12-2", for_class="long", jobs_started=1)
    assert tick(worked) == ["long"], "what has had another job is for everybody"


def test_a_drone_started_for_one_of_two_jobs_leaves_its_room_to_others() -> None:
    coming = drone("kit-ab12-2", S.BOOTING, QUAD, for_class="mine")
    mine = jobs(id="mine", cpus=1, memory_mib=1024)
    other = jobs(id="other", waiting=4, cpus=1, memory_mib=1024, oldest_at=NOW - 9000)
    plan = plan_for(classes=[mine, other], drones=[coming], types=[QUAD])
    assert [(s.drone.for_class, s.reason.covered) for s in plan.starts] == [("other", 3)]


def test_the_recorded_ticks_of_one_job_and_its_four_drones_make_one_drone_for_it() -> None:
    """Four ticks of a real pool: each started one more drone for the job of class b41ffa48. The
    three short jobs get one each, since a start there costs less than a minute's wait: the drone
    that seems to run another one was killed.
    """
    made: dict[model.DroneId, model.Drone] = {}
    for number in range(1, 5):
        seen = read_snapshot(DATA / f"one-job-four-drones-{number}.json")
        seen = replace(seen, drones=dict(made), next_serial=seen.next_serial + len(made))
        plan = safe_plan(seen).plan
        made |= {
            s.drone.id: replace(s.drone, state=S.SUBMITTED, submitted_at=seen.now)
            for s in plan.starts
        }
    assert sorted(d.for_class for d in made.values()) == ["15f6ebdb"] * 3 + ["b41ffa48"]


def test_short_jobs_get_no_more_drones_while_the_first_are_on_their_way() -> None:
    """Ten jobs of a minute are work for four drones; every tick started some more for those that lacked one."""
    mine, _, _ = run_keys(SMALL.owner, SMALL.gpu_milli, SMALL.cpus, SMALL.memory_mib)
    snap = replace(
        scenes.snapshot(classes=[jobs(waiting=10)]), estimates=Estimates(runs={mine: (60.0,)})
    )
    made = {
        s.drone.id: replace(s.drone, state=S.SUBMITTED, submitted_at=NOW)
        for s in plan_of(snap).starts
    }
    assert len(made) == 4
    assert not plan_of(replace(snap, drones=made, next_serial=60)).starts


# ---------------------------------------- Compatible drone types of a shape, their order, and the
# unmet requirement


def compatible(
    *types: model.DroneType, policy: model.Policy | None = None, **job: object
) -> matching.CompatibleTypes:
    return matching.compatibility_cache(types, policy or model.Policy()).table([jobs(**job)])[
        SMALL.id
    ]


@pytest.mark.parametrize(
    ("job", "unmet"),
    [
        ({"capability": 90}, model.UnmetRequirement("capability", "9.0", "8.0")),
        ({"capability": 80}, None),
        ({"vram_mib": 50_000}, model.UnmetRequirement("vram", "50000 MiB", "40960 MiB")),
        ({"cpus": 9}, model.UnmetRequirement("cpus", "9", "8")),
    ],
)
def test_the_first_unmet_requirement_has_both_numbers(
    job: dict[str, object], unmet: model.UnmetRequirement | None
) -> None:
    assert matching.unmet_requirement(jobs(**job), A100) == unmet


@pytest.mark.parametrize(
    ("job", "unmet"),
    [
        (
            {"capability": 80},
            model.UnmetRequirement("capability", "8.0", "none: amd GPUs have no CUDA"),
        ),
        (
            {"driver": 12040},
            model.UnmetRequirement("driver", "12.4", "none: amd GPUs have no CUDA"),
        ),
        ({"vram_mib": 40_000}, None),
    ],
)
def test_a_job_for_cuda_does_not_match_an_amd_type(
    job: dict[str, object], unmet: model.UnmetRequirement | None
) -> None:
    kind = replace(A100, name="mi250", vendor="amd", target="gfx90a", capability=0)
    assert matching.unmet_requirement(jobs(**job), kind) == unmet


def test_types_are_ranked_by_price_per_job_to_the_last_fraction() -> None:
    dear, cheap = replace(V100, name="a", price=0.0019), replace(V100, name="b", price=0.0011)
    assert compatible(dear, cheap).cheapest == (cheap.key, dear.key)
    # A drone of four GPUs at 2.0 an hour and GPU costs as much per job as one of one GPU.
    assert compatible(QUAD, replace(A100, price=1.99)).cheapest == (A100.key, QUAD.key)


def test_the_nearest_type_is_reported_only_if_no_type_fits() -> None:
    assert compatible(A100, V100, vram_mib=35_000).nearest is None
    none = compatible(A100, V100, vram_mib=50_000)
    assert none.kinds == () and none.nearest is not None and none.nearest[0] == A100.key
    assert compatible(A100, vram_mib=50_000, invalid="not a number").nearest is None
    refuses = {A100.key: model.UnmetRequirement("requirements", "x", "y")}
    assert compatible(A100, vram_mib=50_000, refuses=refuses).nearest is None


LARGE = replace(SMALL, id="large", gpu_milli=2000, cpus=8)
PAIR = replace(A100, name="a100x2", gpu_milli=2000, cpus=16, memory_mib=40960)


@pytest.mark.parametrize(
    ("job", "free_small", "limits", "pair", "min_gpus"),
    [
        (LARGE, 4, {}, PAIR, 2),
        (LARGE, 4, {"max_starts_per_tick": 1}, PAIR, 2),  # the next tick has room again
        # Small jobs find no other room, whatever limit binds first.
        (LARGE, 0, {}, PAIR, 0),
        (LARGE, 0, {"max_starts_per_tick": 1}, PAIR, 0),
        (LARGE, 0, {"queue_when_full": True}, PAIR, 0),
        (LARGE, 4, {"max_gpu_milli": 2000}, PAIR, 0),
        # It has more GPUs than the job, or has them only for the CPUs: others may use the rest.
        (LARGE, 4, {}, replace(PAIR, gpu_milli=3000), 0),
        (replace(SMALL, cpus=16), 4, {}, PAIR, 0),
    ],
)
def test_a_large_drone_takes_small_jobs_only_if_there_is_no_room_for_small_drones(
    job: model.JobClass,
    free_small: int,
    limits: Mapping[str, object],
    pair: model.DroneType,
    min_gpus: int,
) -> None:
    free = {"a100": free_small, "a100x2": 2}
    plan = plan_of(snapshot(classes=[job], types=(A100, pair), free=free, limits=limits))
    assert [(start.drone.type, start.drone.job_filter.min_gpus) for start in plan.starts] == [
        (pair.key, min_gpus)
    ]


@pytest.mark.parametrize(("min_gpus", "starts"), [(0, []), (2, [A100.key])])
@pytest.mark.parametrize("state", [S.BOOTING, S.IDLE])
def test_a_drone_for_large_jobs_is_no_supply_for_small_ones(
    state: model.DroneState, min_gpus: int, starts: list[str]
) -> None:
    large = drone("d-1", state, PAIR, job_filter=JobFilter(min_gpus=min_gpus))
    made = snapshot(classes=[SMALL], drones=[large], types=(A100, PAIR), free={"a100": 4})
    assert started(plan_of(made)) == starts


@pytest.mark.parametrize(
    ("idle_s", "min_gpus", "max_drones", "leaves"),
    [
        (100.0, 2, 1, True),
        (80.0, 2, 1, False),
        (100.0, 2, 2, False),
        (700.0, 2, 2, True),
        (700.0, 0, 1, False),
    ],
)
@pytest.mark.parametrize(
    "headroom", [(), (model.Headroom("desk", gpu_milli=2000),)], ids=["", "headroom"]
)
def test_an_idle_drone_leaves_soon_if_jobs_that_it_refuses_lack_its_room(
    idle_s: float,
    min_gpus: int,
    max_drones: int,
    leaves: bool,
    headroom: tuple[model.Headroom, ...],
) -> None:
    policy = model.Policy(idle_timeout_s=600.0, max_drones=max_drones, headroom=headroom)
    large = drone("d-1", S.IDLE, PAIR, age_s=idle_s, job_filter=JobFilter(min_gpus=min_gpus))
    made = snapshot(classes=[SMALL], drones=[large], types=(A100, PAIR), policy=policy)
    kept = headroom and max_drones > 1
    assert bool(plan_of(made).drains) is (leaves and not kept)


def test_of_two_drones_in_a_queue_the_one_that_refuses_the_jobs_is_unneeded() -> None:
    wide = replace(SMALL, cpus=16)
    pair_only = JobFilter(min_gpus=2)
    closed = drone("d-1", S.QUEUED, PAIR, age_s=300.0, job_filter=pair_only, for_class="gone")
    free = drone("d-2", S.QUEUED, PAIR, age_s=200.0, for_class=wide.id)
    plan = plan_of(snapshot(classes=[wide], drones=[closed, free], types=(A100, PAIR)))
    assert [move.drone.id for move in plan.moves if isinstance(move.reason, reasons.Unneeded)] == [
        "d-1"
    ]
