"""The advised change does what it promises, is the smallest that does, and never asks for more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.hostile import worlds
from provisioner import descriptions, model, reasons
from provisioner.estimates import Estimates, StartDelays
from provisioner.model import (
    Breaker,
    BreakerState,
    DroneState,
    Fault,
    FaultKind,
    JobClass,
    Scope,
    Sharing,
    Subject,
    UnmetRequirement,
)
from provisioner.planner import advice, decide
from provisioner.planner.advice import RequestChange, WhatIf, advise
from provisioner.planner.breakers import update_breakers
from provisioner.planner.context import check_views
from provisioner.planner.lifecycle import observe_all
from provisioner.planner.placement import place
from provisioner.reasons import RequestAdvice, StartForecast, StartOutcome
from tests.planner.scenes import (
    A100,
    NOW,
    QUAD,
    SMALL,
    V100,
    drone,
    jobs,
    slot_of,
    snapshot,
    started,
    with_pool,
)

GIB = 1024
BIG = replace(A100, name="big", memory_mib=64 * GIB, max_drones=0)
DENIED = Fault(FaultKind.DENIED, "token expired", NOW - 9, of_order=True)
CPU = model.DroneType("topas", "cpu", 0, 16, 64 * GIB, 0)
SHARED = replace(A100, name="shared", sharing=Sharing.TIME_SLICED, shares=4)
STARTS, WAITS, NEVER = (StartForecast(outcome) for outcome in StartOutcome)


def advice_for(**given: Any) -> RequestAdvice:
    """Return the advice for a class of one job like SMALL. Fields of a class change it, the others the snapshot."""
    fields = {
        name: given.pop(name) for name in list(given) if name in JobClass.__dataclass_fields__
    }
    job = jobs(**fields)
    return advise(snapshot(classes=[job, *given.pop("others", ())], **given), job)


@pytest.mark.parametrize(
    ("given", "change"),
    [
        pytest.param({"memory_mib": 41 * GIB}, ("memory", "41984 MiB", "20480 MiB"), id="memory"),
        pytest.param({"cpus": 9}, ("cpus", "9", "8"), id="cpus"),
        pytest.param({"vram_mib": 50000}, ("vram", "50000 MiB", "40960 MiB"), id="vram"),
        pytest.param(
            {"vram_mib": 50000, "types": [V100, A100]},
            ("vram", "50000 MiB", "40960 MiB"),
            id="largest",
        ),
        pytest.param(
            {"capability": 90, "types": [V100, A100]}, ("capability", "9.0", "8.0"), id="capability"
        ),
        pytest.param(
            {"driver": 12080, "types": [replace(A100, driver=12040)]},
            ("driver", "12.8", "12.4"),
            id="driver",
        ),
        pytest.param(
            {"disk_mib": 90000, "types": [replace(A100, disk_mib=50000)]},
            ("disk", "90000 MiB", "49152 MiB"),
            id="disk",
        ),
        pytest.param({"gpu_milli": 4000}, ("gpus", "4", "1"), id="gpus"),
        pytest.param(
            {"gpu_milli": 8000, "types": [A100, QUAD]}, ("gpus", "8", "4"), id="most gpus"
        ),
        pytest.param(
            {"types": [SHARED], "cpus": 1, "memory_mib": 1024}, ("gpus", "1", "0.25"), id="share"
        ),
        pytest.param(
            {"walltime_s": 90000.0, "types": [replace(A100, walltime_s=86400.0, margin_s=120.0)]},
            ("walltime", "90000 s", "86280 s"),
            id="walltime",
        ),
        pytest.param(
            {"refuses": {A100.key: UnmetRequirement("gpu_model", "H100", "A100")}},
            ("no-gpu_model", "H100", ""),
            id="model",
        ),
        pytest.param({"types": [CPU]}, ("optional", "required", "optional"), id="optional"),
    ],
)
def test_a_job_that_nothing_can_run_is_told_the_largest_request_that_starts_it(
    given: dict[str, Any], change: tuple[str, ...]
) -> None:
    found = advice_for(**given)
    assert found.now == NEVER and isinstance(found.why, reasons.NothingFits)
    assert (found.dimension, found.requested, found.advised) == change
    assert found.then == STARTS


def test_one_change_is_not_enough() -> None:
    found = advice_for(memory_mib=41 * GIB, cpus=9)
    assert found.dimension == "" and found.then is None
    assert descriptions.advise(found).startswith(
        "no change of the request helps: no drone type fits: cpus must be 9"
    )


def test_a_type_that_is_refused_for_two_reasons_is_not_promised() -> None:
    share = UnmetRequirement("gpus", "1", "shares of 0.25")
    small = {"types": [SHARED], "cpus": 1, "memory_mib": 1024}
    assert advice_for(refuses={SHARED.key: share}, **small).advised == "0.25"
    assert advice_for(refuses={SHARED.key: replace(share, others=1)}, **small).then is None
    software = UnmetRequirement("requirements", "TARGET.HasCVMFS", "unknown", others=1)
    assert advice_for(refuses={A100.key: software}).then is None
    assert advice_for(
        refuses={A100.key: software, V100.key: replace(software, others=0)}, types=[A100, V100]
    ).then


def test_an_older_cuda_is_not_advised_for_a_type_whose_driver_is_unknown() -> None:
    unmet = UnmetRequirement("driver", "CUDA 12.4", "unknown")
    asks = {"driver": 12040, "types": [replace(A100, driver=0)]}
    assert advice_for(refuses={A100.key: unmet}, **asks).then is None
    assert advice_for(refuses={A100.key: replace(unmet, available="CUDA 12.2")}, **asks).then


def test_less_vram_than_such_jobs_have_used_is_not_advised() -> None:
    job = jobs(vram_mib=50000)
    snap = snapshot(classes=[job], types=[V100, A100])
    assert advise(snap, job, peak_vram_mib=40960).advised == "40960 MiB"
    assert advise(snap, job, peak_vram_mib=40961).dimension != "vram"


def test_cuda_jobs_are_not_advised_to_use_gpus_without_cuda() -> None:
    assert advice_for(capability=80, types=[replace(A100, vendor="amd", capability=0)]).then is None


def test_a_job_that_starts_needs_no_change() -> None:
    found = advice_for()
    assert found == RequestAdvice(STARTS)
    assert descriptions.advise(found).startswith(
        "no change is needed: it starts as soon as its slot is ready"
    )


LONG = drone("kit-ab12-1", DroneState.BUSY, BIG, age_s=3600.0)
LONG_SLOT = slot_of(
    LONG,
    BIG,
    owner="bob",
    begun_at=NOW - 3600,
    job_gpu_milli=1000,
    job_cpus=8,
    job_memory_mib=40960,
)
RUNS = Estimates({"bob": (10 * 3600.0,), "": (10 * 3600.0,)}, {A100.key: StartDelays(900.0, 120.0)})


def test_seventeen_minutes_instead_of_nine_hours() -> None:
    job = jobs(memory_mib=41 * GIB)
    snap = replace(
        snapshot(classes=[job], types=[A100, BIG], drones=[LONG], slots=[LONG_SLOT]), estimates=RUNS
    )
    found = advise(snap, job)
    assert found.now == StartForecast(StartOutcome.WAITS, 9 * 3600.0)
    assert found.then == StartForecast(StartOutcome.STARTS, 1020.0)
    assert descriptions.advise(found) == (
        "ask for 20 GiB of memory instead of 41 GiB, if that is enough for the program: it starts in about 17 minutes "
        "instead of 9 hours"
    )


def test_jobs_ahead_and_unknown_run_times_count() -> None:
    job = jobs(memory_mib=41 * GIB)
    ahead = replace(job, id="ahead", waiting=3, oldest_at=NOW - 9999, owner="bob")
    given = {"types": [BIG], "drones": [LONG], "slots": [LONG_SLOT]}
    behind = snapshot(classes=[job, ahead], **given)
    assert advise(replace(behind, estimates=RUNS), job).now.wait_s == 9 * 3600.0 + 3 * 36000.0
    assert advise(behind, job).now == WAITS, "nothing is known of run times"
    assert descriptions.advise(advise(behind, job)) == (
        "no change of the request helps: limit max_drones of topas/big is reached: 1/0"
    )


def test_a_free_slot_with_less_memory_is_a_place() -> None:
    there = drone("kit-ab12-1", DroneState.BUSY, QUAD)
    slot = slot_of(there, QUAD, free_gpu_milli=2000, free_cpus=16, free_memory_mib=31 * GIB + 100)
    job = jobs(memory_mib=41 * GIB, cpus=4)
    snap = snapshot(
        classes=[job], types=[QUAD], drones=[there], slots=[slot], limits={"max_drones": 1}
    )
    found = advise(snap, job)
    assert (found.advised, found.then) == ("31744 MiB", StartForecast(StartOutcome.STARTS, 0.0))
    assert descriptions.advise(found) == (
        "ask for 31 GiB of memory instead of 41 GiB, if that is enough for the program: it starts at once. As it is, "
        "it waits for a free slot for an unknown time"
    )


@pytest.mark.parametrize(
    ("ages_s", "wait_s"), [((50,), 170.0), ((150,), 120.0), ((9000,), None), ((9000, 50), 170.0)]
)
def test_a_drone_is_expected_by_the_usual_delays_unless_it_is_delayed(
    ages_s: tuple[int], wait_s: float | None
) -> None:
    usual = Estimates({}, dict.fromkeys((A100.key, BIG.key), StartDelays(100.0, 120.0)))
    coming = [
        drone(f"kit-ab12-{n}", DroneState.QUEUED, age_s=float(age_s))
        for n, age_s in enumerate(ages_s)
    ]
    free = {"a100": len(ages_s) - 1, "big": 1}
    snap = snapshot(
        classes=[SMALL], types=[A100, BIG], drones=coming, free=free, limits={"max_drones": 2}
    )
    assert advise(replace(snap, estimates=usual), SMALL).now == StartForecast(
        StartOutcome.STARTS, wait_s
    )
    assert advise(snap, SMALL).now == STARTS


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"limits": {"enabled": False}}, reasons.SiteDisabled),
        ({"limits": {"max_drones": 0}}, reasons.LimitReached),
        ({"free": {"a100": 0}}, reasons.SiteFull),
        ({"quota": {"a100": 0}}, reasons.SiteQuota),
        ({"overlay_fault": Fault(FaultKind.DOWN, "refused", NOW)}, reasons.StaleView),
        ({"invalid": "1.5 GPUs: write 1 or 2"}, reasons.BadRequest),
        ({"limited": 1, "limit": "concurrency limit licence is used up"}, reasons.PoolLimit),
        (
            {"breakers": [Breaker(Scope("topas"), BreakerState.BANNED, NOW, 1, NOW + 60, DENIED)]},
            reasons.BackingOff,
        ),
        (
            {
                "breakers": [
                    Breaker(Scope("topas", "a100", "small"), BreakerState.BANNED, NOW, 1, NOW + 60)
                ]
            },
            reasons.StartsUnmatched,
        ),
        (
            {"refuses": {A100.key: UnmetRequirement("start", "Owner != bob", "false")}},
            reasons.NothingFits,
        ),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_no_change_of_the_request_helps_against_what_holds_every_job(
    given: Mapping[str, Any], why: type
) -> None:
    found = advice_for(**given)
    assert isinstance(found.why, why)
    assert found.then is None
    assert descriptions.advise(found).startswith("no change of the request helps: ")


def test_priority_and_group_are_changed_among_the_owners_own_jobs() -> None:
    others = [replace(SMALL, id="own", owner="bob", priority=5, oldest_at=NOW - 9999)]
    found = advice_for(owner="bob", others=others, limits={"max_drones": 1})
    assert (found.dimension, found.advised) == ("priority", "6") and found.then == STARTS
    strangers = [replace(others[0], owner="eve")]
    assert advice_for(owner="bob", others=strangers, limits={"max_drones": 1}).then is None
    groups = (model.Group("full", 0, 0, surplus=False), model.Group("free", 9000, 0, surplus=False))
    job = jobs(owner="bob", group="full")
    running = replace(job, id="own", group="free", waiting=0, running=1)
    found = advise(with_pool(snapshot(classes=[job, running]), groups=groups), job)
    assert isinstance(found.why, reasons.GroupQuota)
    assert (found.dimension, found.advised, found.then) == ("group", "free", STARTS)


def test_the_last_job_of_a_class_is_judged() -> None:
    found = advice_for(waiting=3, limits={"max_drones": 2})
    assert isinstance(found.why, reasons.LimitReached), "two of three start"


_LESS = {
    "memory": "memory_mib",
    "disk": "disk_mib",
    "vram": "vram_mib",
    "cpus": "cpus",
    "capability": "capability",
    "driver": "driver",
    "gpus": "gpu_milli",
    "walltime": "walltime_s",
}


def applied(what_if: WhatIf, found: RequestAdvice) -> JobClass:
    """Return the job as its owner makes it by the text of the advice."""
    job, amount = what_if.one, found.advised.partition(" ")[0]
    match found.dimension:
        case "optional":
            return job.with_optional_gpu()
        case "group":
            return replace(job, group=found.advised)
        case "priority":
            return replace(job, priority=int(found.advised))
        case "capability" | "driver" | "gpus" as dimension:
            scale = {"capability": 10, "driver": 1000, "gpus": 1000}[dimension]
            return replace(job, **{_LESS[dimension]: round(float(amount) * scale)})
        case dimension if dimension.startswith("no-"):
            left = {
                key: why for key, why in job.refuses.items() if why.requested != found.requested
            }
            return replace(job, refuses=left)
        case dimension:
            return replace(job, **{_LESS[dimension]: int(amount)})


@pytest.mark.parametrize("first_seed", range(0, 200, 100))
def test_in_random_worlds_the_advised_change_does_what_it_promises(first_seed: int) -> None:
    """Planned with the change, the job starts, or gets a type that fits, as promised; the request only shrinks."""
    advised = 0
    for seed in range(first_seed, first_seed + 100):
        snap = recorded(worlds.world(seed))
        for job in snap.overlay.view.classes if snap.overlay.view else ():
            if not job.waiting or [each.id for each in snap.overlay.view.classes].count(job.id) > 1:
                continue
            found, what_if = advise(snap, job), WhatIf.of(snap, job)
            assert descriptions.advise(found)
            if found.then is None:
                continue
            advised += 1
            changed = applied(what_if, found)
            if field := _LESS.get(found.dimension):
                assert 0 < getattr(changed, field) < getattr(job, field), seed
            assert found.then.outcome is not StartOutcome.NEVER
            if found.dimension == "priority":
                continue
            then, _ = what_if.forecast(RequestChange(changed))
            assert then == found.then, seed
            again = planned(snap, job, changed)
            held = [
                each.reason
                for each in again.refusals
                if each.subject in (Subject("all"), Subject("class", changed.id))
            ]
            begins = all(isinstance(reason, reasons.DemandCovered) for reason in held)
            assert begins == (then.outcome is StartOutcome.STARTS), seed
            assert begins or not any(each.drone.for_class == changed.id for each in again.starts), (
                seed
            )
    assert advised > 10


def recorded(snap: model.Snapshot) -> model.Snapshot:
    """Return the snapshot with what its views show on record, as after the tick that saw them."""
    moves = observe_all(snap, check_views(snap))
    drones = {**snap.drones, **{move.drone.id: move.drone for move in moves}}
    live = {key: drone for key, drone in drones.items() if not drone.state.ended}
    return replace(snap, drones=live, breakers=update_breakers(snap, moves))


def planned(snap: model.Snapshot, job: JobClass, changed: JobClass) -> model.Plan:
    """Return the whole plan in which one job of a class is ``changed``, with the back-offs of its class."""
    assert snap.overlay.view is not None
    classes = [
        replace(each, waiting=each.waiting - 1) if each.id == job.id else each
        for each in snap.overlay.view.classes
    ]
    scopes = {
        each: replace(each, class_id=f"{each.class_id}~")
        for each in snap.breakers
        if each.class_id == job.id
    }
    copies = {new: replace(snap.breakers[old], scope=new) for old, new in scopes.items()}
    snap = replace(snap, breakers={**snap.breakers, **copies})
    return decide(with_pool(snap, classes=(*classes, changed)))


def test_a_change_that_was_made_is_not_advised_again() -> None:
    job = jobs(memory_mib=41 * GIB, waiting=1)
    snap = snapshot(classes=[job])
    changed = replace(job, memory_mib=int(advise(snap, job).advised.partition(" ")[0]))
    after = snapshot(classes=[changed])
    assert advise(after, changed) == RequestAdvice(STARTS)
    assert started(decide(after)) == [A100.key]


def test_nothing_is_promised_while_the_pool_does_not_negotiate() -> None:
    """`status` was critical, and the advice said that the job starts in about a minute."""
    seen = snapshot(classes=[jobs()])
    view = seen.overlay.view
    assert view is not None and advise(seen, view.classes[0]).now.outcome is StartOutcome.STARTS
    silent = replace(seen.overlay, view=replace(view, negotiated_at=view.taken_at - 900))
    found = advise(replace(seen, overlay=silent), view.classes[0])
    assert found.now == WAITS and found.why == reasons.NegotiatorSilent(900)


def test_full_drones_and_classes_behind_change_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> list[RequestAdvice]:
        return [advise(world, job) for world, job in waiting]

    seen = [worlds.world(seed) for seed in range(40)]
    views = [(world, world.overlay.view) for world in seen]
    waiting = [(world, job) for world, view in views if view for job in view.classes[:3]]
    known = told()
    monkeypatch.setattr(advice, "is_full", lambda *_: False)
    monkeypatch.setattr(advice, "place", lambda *given: place(given[0]))
    assert told() == known and len(known) > 50
