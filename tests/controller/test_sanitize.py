"""Whatever numbers and texts an adapter lets through, they are decided on without a crash and can be recorded."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from provisioner import model, serialization
from provisioner.controller import sanitize
from provisioner.controller.polling import fault_of
from provisioner.controller.sanitize import (
    MAX_NUMBER,
    MAX_TEXT_CHARS,
    Sanitizer,
    View,
    sanitize_result,
)
from provisioner.interfaces import UnavailableError
from provisioner.planner import decide
from provisioner.planner.validation import validate_plan
from tests.planner.scenes import A100, NOW, SMALL, drone, slot_of, snapshot

numbers: st.SearchStrategy[Any] = st.sampled_from(
    [
        nan,
        inf,
        -inf,
        -1,
        -0.0,
        0,
        1,
        0.5,
        1000,
        1e9,
        1e300,
        NOW,
        NOW + 1e6,
        10**12,
        2**63,
        10**400,
        -(10**400),
    ]
)
texts = st.sampled_from(["", "x; rm -rf /", "\udcff\ud800", "\0", "é", "x" * 5000])
ids = st.sampled_from(["kit-ab12-1", "kit-ab12-2", "kit-old1-9", "\udcff", "x" * 64, ""]).map(
    model.DroneId
)
states = st.sampled_from([s for s in model.DroneState if not s.ended])


def of(kind: type, /, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of ``kind`` in which every number and every text is anything."""
    plain = {"int": numbers, "float": numbers, "str": texts}
    fields = {f.name: plain[f.type] for f in kind.__dataclass_fields__.values() if f.type in plain}  # type: ignore[attr-defined]
    return st.builds(kind, **(fields | more))


ends = of(
    model.RemoteEnd, kind=st.sampled_from(model.EndKind), exit_code=st.sampled_from([None, 0, 73])
)
remotes = of(
    model.RemoteDrone, drone_id=ids, state=st.sampled_from(model.RemoteState), end=st.none() | ends
)
slots = of(model.Slot, drone_id=ids, state=st.sampled_from(model.SlotState))
misfits = of(model.UnmetRequirement)
classes = of(
    model.JobClass,
    refuses=st.dictionaries(st.just(model.TypeKey("topas/a100")), misfits, max_size=1),
)
names = st.lists(texts | st.sampled_from(["a100", "w1"]), max_size=2).map(tuple)
site_views = of(
    model.SiteView,
    drones=st.dictionaries(ids, remotes, max_size=3),
    free=st.none() | st.dictionaries(texts | st.just("a100"), numbers, max_size=3),
    nodes=st.lists(of(model.Node, types=names), max_size=2, unique_by=lambda n: n.name).map(tuple),
    claims=st.lists(
        of(model.OwnerDemand, count=st.sampled_from([nan, -1, 0, 3]), nodes=names), max_size=2
    ).map(tuple),
    owner_runs=st.none() | of(model.OwnerLoad),
    quota=st.none() | st.dictionaries(texts | st.just("a100"), numbers, max_size=3),
    free_gpu_milli=st.none() | numbers,
    notices=st.lists(texts, max_size=2).map(tuple),
)
overlay_views = of(
    model.OverlayView,
    classes=st.lists(classes, max_size=3, unique_by=lambda c: c.id).map(tuple),
    slots=st.lists(slots, max_size=3).map(tuple),
    evictions=st.none() | st.lists(of(model.Eviction, drone_id=ids), max_size=2).map(tuple),
    notices=st.just(()),
    remarks=st.lists(texts, max_size=2).map(tuple),
)


service_views = of(
    model.ServiceView,
    name=texts | st.just("cms"),
    by_vo=st.dictionaries(texts, numbers, max_size=2),
    models=st.lists(of(model.ModelUse), max_size=2).map(tuple),
)
services_views = of(
    model.ServicesView,
    services=st.lists(service_views, max_size=2, unique_by=lambda s: s.name).map(tuple),
    slots=st.lists(slots, max_size=3).map(tuple),
    notices=st.lists(texts, max_size=2).map(tuple),
)
SERVER = model.InferenceServer("cms", ("deepmet:3",), "exec server")
TRITON = replace(A100, name="triton", server=SERVER)


@settings(max_examples=400, deadline=None)
@given(
    overlay_views,
    site_views,
    services_views,
    st.lists(st.tuples(states, st.sampled_from([A100, TRITON])), max_size=2),
    st.sampled_from([0.0, 3600.0, -1e9]),
)
def test_no_view_however_nasty_breaks_a_decision_or_the_record(
    overlay: model.OverlayView,
    site: model.SiteView,
    services: model.ServicesView,
    lives: list[tuple[model.DroneState, model.DroneType]],
    ahead_s: float,
) -> None:
    there = [
        drone(f"kit-ab12-{n}", state, kind, service=kind.service)
        for n, (state, kind) in enumerate(lives, 1)
    ]
    seen, listed = taken_over(overlay, NOW, ahead_s), taken_over(site, NOW, ahead_s)
    polled = {"topas": model.PolledSite("topas", listed)}
    snap = replace(
        snapshot(drones=there, types=[A100, TRITON]),
        overlay=model.PolledOverlay(seen),
        services=model.PolledServices(taken_over(services, NOW, ahead_s)),
        sites=polled,
    )
    snap = replace(snap, policy=replace(snap.policy, services=(model.Service("cms"),)))
    plan = decide(snap)
    assert validate_plan(snap, plan) == ()
    again = serialization.from_json(model.Snapshot, serialization.to_json(snap))
    assert decide(again) == plan, "a saved snapshot replays"


def taken_over(view: View, began: float, ahead_s: float) -> View:
    return Sanitizer().sanitized(view, began, ahead_s)


SLOT = model.Slot(model.DroneId("kit-ab12-1"), model.SlotState.IDLE, NOW - 5)
SITE, JOB = model.SiteView("topas", NOW), replace(SMALL, cpus=-5)


def heard(at: float) -> model.OverlayView:
    return model.OverlayView(NOW, slots=(replace(SLOT, heard_at=at),))


ODD: list[tuple[model.SiteView | model.OverlayView, str, object, str]] = [
    (heard(nan), "slots.0.heard_at", 0.0, "slot kit-ab12-1: heard_at = nan"),
    (heard(-5.0), "slots.0.heard_at", 0.0, "slot kit-ab12-1: heard_at = -5.0"),
    *(
        (
            replace(SITE, free_gpu_milli=odd),
            "free_gpu_milli",
            None,
            f"site: free_gpu_milli = {str(odd)[:40]}",
        )
        for odd in (inf, 2000.0, 10**400, True, "8000", -1000)
    ),
    (model.OverlayView(NOW, (JOB,)), "classes.0.invalid", "cpus = -5 is no amount", ""),
    (model.OverlayView(NOW, (JOB,)), "classes.0.cpus", 0, ""),
    (
        model.OverlayView(NOW, (replace(SMALL, waiting=10**400),)),
        "classes.0.waiting",
        MAX_NUMBER,
        "",
    ),
    *((replace(SITE, taken_at=odd), "taken_at", NOW, "") for odd in (nan, inf, -1.0, NOW + 100)),
]


@pytest.mark.parametrize(("view", "path", "expected", "notice"), ODD)
def test_what_cannot_be_is_unknown_and_the_view_says_so(
    view: Any, path: str, expected: object, notice: str
) -> None:
    taken = found = taken_over(view, NOW, 0.0)
    for step in path.split("."):
        found = found[int(step)] if step.isdigit() else getattr(found, step)
    assert found == expected and type(found) is type(expected)
    assert taken.notices == ((f"1 values that cannot be: {notice}",) if notice else ())


def test_each_view_is_repaired_anew() -> None:
    border, odd = Sanitizer(), model.Slot(model.DroneId("kit-ab12-2"), model.SlotState.IDLE, nan)
    for n in range(3):
        view = border.sanitized(model.OverlayView(NOW + n, slots=(SLOT, odd)), NOW + n, 0.0)
        assert view.slots[0] is SLOT and view.slots[1].heard_at == 0.0 and len(view.notices) == 1, (
            "at every look"
        )
    quota, third = {"a100": 3}, model.DroneId("kit-ab12-3")
    remote = model.RemoteDrone(SLOT.drone_id, model.RemoteState.RUNNING)
    for now, count, notices in ((NOW, 3, 0), (NOW + 1, 2, 0), (NOW + 2, -1, 1)):
        quota["a100"] = count
        site = border.sanitized(
            model.SiteView("topas", now, {third: remote}, quota=quota), now, 0.0
        )
        assert (site.quota, len(site.notices)) == ({"a100": max(0, count)}, notices)
        assert site.drones[third].drone_id == third, "the site's own key says which drone it is"


def test_values_of_the_listing_before_are_not_gone_through_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 10,000 drones a tick at steady state cost two and a half times as much."""
    border, looked, real = Sanitizer(), list[object](), sanitize._Repair._repaired
    slots = tuple(replace(SLOT, drone_id=model.DroneId(f"kit-ab12-{n}")) for n in range(50))
    border.sanitized(model.OverlayView(NOW, slots=slots), NOW, 0.0)
    monkeypatch.setattr(
        sanitize._Repair, "_repaired", lambda *asked: looked.append(asked[1]) or real(*asked)
    )
    view = model.OverlayView(NOW + 1, slots=(*slots, replace(SLOT, heard_at=NOW)))
    assert border.sanitized(view, NOW + 1, 0.0) == view
    assert looked == [view, view.slots[-1]]


def test_what_tells_the_same_as_before_is_the_same_object() -> None:
    """The planner does not compare it again, whether the adapter makes it anew or not."""
    border, remote = Sanitizer(), model.RemoteDrone(SLOT.drone_id, model.RemoteState.RUNNING, "7")
    border.sanitized(model.OverlayView(NOW, slots=(SLOT,)), NOW, 0.0)
    again, news = replace(SLOT), replace(SLOT, jobs_started=SLOT.jobs_started + 1)
    assert border.sanitized(model.OverlayView(NOW, slots=(again,)), NOW, 0.0).slots[0] is SLOT
    assert border.sanitized(model.OverlayView(NOW, slots=(news,)), NOW, 0.0).slots == (news,)
    assert border.sanitized(model.OverlayView(NOW, slots=(again,)), NOW, 0.0).slots[0] is again
    border = Sanitizer()
    border.sanitized(model.SiteView("topas", NOW, {SLOT.drone_id: remote}), NOW, 0.0)
    view = border.sanitized(
        model.SiteView("topas", NOW, {SLOT.drone_id: replace(remote)}), NOW, 0.0
    )
    assert view.drones[SLOT.drone_id] is remote
    late = border.sanitized(
        model.SiteView("topas", NOW, {SLOT.drone_id: replace(remote, started_at=NOW)}), NOW, 50.0
    )
    assert late.drones[SLOT.drone_id].started_at == NOW - 50.0, (
        "while the clock is off, times are shifted in each view"
    )
    again_late = border.sanitized(
        model.SiteView("topas", NOW, {SLOT.drone_id: replace(remote, started_at=NOW)}), NOW, 40.0
    )
    assert again_late.drones[SLOT.drone_id].started_at == NOW - 40.0


def test_a_group_and_a_completion_that_cannot_be_are_mended_and_told() -> None:
    group = model.Group("physics", quota_milli=-4, used_milli=5, priority=nan)
    ended = model.CompletedJob(
        "7.0", nan, NOW - 60, 30.0, 1000, 1, 1024, drone_id=model.DroneId("\udcff")
    )
    sound = model.Eviction(model.DroneId("kit-ab12-1"), "204.7", NOW, 1000, nan)
    evictions = (sound, replace(sound, drone_id=model.DroneId("\udcff")))
    view = taken_over(
        model.OverlayView(NOW, completions=(ended,), groups=(group,), evictions=evictions), NOW, 0.0
    )
    assert view.groups == (replace(group, quota_milli=None, priority=0.0),)
    assert view.completions == (replace(ended, ended_at=0.0, drone_id=None),)
    assert view.evictions == (replace(sound, lost_s=0.0),)
    assert view.notices[0].startswith(r"4 values that cannot be: id of a drone: '\udcff'; ")
    assert "ended_at = nan" in view.remarks[0], "it needs no operator"
    assert taken_over(model.OverlayView(NOW), NOW, 0.0).evictions is None, (
        "not told is not the same as none"
    )


def test_a_priority_of_a_user_is_a_number_of_any_kind() -> None:
    view = model.OverlayView(NOW, priorities={"alice": 507.95, "bob": nan})
    sane = Sanitizer().sanitized(view, NOW, 0.0)
    assert sane.priorities == {"alice": 507.95, "bob": 0.0}
    assert sane.notices == ("1 values that cannot be: priorities: bob = nan",)


def test_a_node_an_owner_and_a_quota_that_cannot_be_are_mended_and_told() -> None:
    node = model.Node("w\udcff1", ("a100", "\udcff"), 8000, -1, nan, 0, 2**70, 0, 0, 0)  # type: ignore[arg-type]
    claim = model.OwnerDemand(-3, 1000, 1, 1, NOW + inf, nodes=("w1", "x" * 5000), who="\ud800")
    quota: Any = {"a100": 2.5, "h100": nan, "v100": -3, "t4": 10**400, "k\udcff": 1, "l4": 4}
    told = model.SiteView(
        "topas", NOW, nodes=(node,), claims=(claim,), owner_runs=model.OwnerLoad(-1), quota=quota
    )
    site = taken_over(told, NOW, 0.0)
    (mended,), (wants,) = site.nodes, site.claims
    assert (mended.cpus, mended.memory_mib, mended.free_gpu_milli) == (0, 0, MAX_NUMBER)
    assert (mended.name, mended.types) == ("w?1", ("a100", "?"))
    assert (wants.count, wants.since, wants.who) == (0, 0.0, "?")
    assert [len(name) for name in wants.nodes] == [2, MAX_TEXT_CHARS]
    assert site.owner_runs == model.OwnerLoad()
    assert site.quota == {"a100": 2, "h100": 0, "v100": 0, "t4": MAX_NUMBER, "k?": 1, "l4": 4}
    assert "node w?1: cpus = -1" in site.notices[0] and "claim: count = -3" in site.remarks[0]
    serialization.to_json(site)


def test_times_come_from_the_hosts_clock_and_are_used_on_ours() -> None:
    """Someone set the host's clock back by an hour: what it calls an hour ago is now."""
    end = model.RemoteEnd(model.EndKind.EXITED, NOW - 3600, 0)
    remote = model.RemoteDrone(
        model.DroneId("kit-ab12-1"), model.RemoteState.ENDED, started_at=NOW - 3660, end=end
    )
    slot = replace(
        slot_of(drone("kit-ab12-2")), heard_at=NOW - 3600, idle_since=NOW - 3610, retires_at=0.0
    )
    site = taken_over(model.SiteView("topas", NOW - 3600, {remote.drone_id: remote}), NOW, -3600.0)
    evicted = model.Eviction(model.DroneId("kit-ab12-2"), "204.7", NOW - 3630, 1000, 31.5)
    overlay = taken_over(
        model.OverlayView(NOW - 3601, slots=(slot,), evictions=(evicted,)), NOW, -3600.0
    )
    there = site.drones[remote.drone_id]
    assert (site.taken_at, there.started_at, there.end and there.end.at) == (NOW, NOW - 60, NOW)
    assert (overlay.taken_at, overlay.slots[0].heard_at, overlay.slots[0].idle_since) == (
        NOW - 1,
        NOW,
        NOW - 10,
    )
    assert overlay.slots[0].retires_at == 0.0, "not told is not a time"
    assert overlay.evictions == (replace(evicted, at=NOW - 30),), (
        "31.5 s of work are 31.5 s by any clock"
    )


def test_what_cannot_be_recorded_of_an_answer_does_not_come_that_far() -> None:
    fault = model.Fault(model.FaultKind.NODE, "caf\udce9 " + "x" * 10**6, nan)
    told = model.OrderResult(
        model.DroneId("kit-ab12-1"), model.OrderOutcome.REJECTED, "r\udcff", fault
    )
    receipt = sanitize_result(told)
    assert serialization.from_json(model.OrderResult, serialization.to_json(receipt)) == receipt
    assert receipt.fault is not None and len(receipt.fault.message) == MAX_TEXT_CHARS
    assert serialization.to_json(fault_of(UnavailableError("/tmp/\udcff"), NOW))


@pytest.mark.parametrize("text", ["\ud800", "x" * 5000])
def test_what_a_class_wants_of_a_type_that_it_refuses_can_be_recorded(text: str) -> None:
    refuses = {A100.key: model.UnmetRequirement("gpu_model", text, "A100")}
    (taken,) = taken_over(
        model.OverlayView(NOW, (replace(SMALL, refuses=refuses),)), NOW, 0.0
    ).classes
    assert len(taken.refuses[A100.key].requested) <= MAX_TEXT_CHARS
    assert serialization.from_json(model.JobClass, serialization.to_json(taken)) == taken


@pytest.mark.parametrize("step_s", [120.0, -3600.0])
def test_the_end_of_a_job_is_one_end_while_the_clock_is_off_and_after_it(step_s: float) -> None:
    """The drift is made up for little by little: by it the same end had another time at each look."""
    border, late = Sanitizer(), model.CompletedJob("9.0", NOW + 20, NOW - 5000, 60.0, 1000, 1, 1)
    raw = tuple(replace(late, job_id=f"{n}.0", ended_at=NOW - 100 - n) for n in range(3))
    ends: dict[str, set[float]] = {}
    for poll, drift_s in enumerate([0.0, 0.0, step_s, step_s / 2, step_s / 3, 0.0, 0.0]):
        told = (*raw, late) if poll > 2 else raw
        if poll == 3:
            told = (late,)  # the schedd of the others does not answer for once
        view = border.sanitized(
            model.OverlayView(NOW + poll, completions=told), NOW + poll, drift_s
        )
        for each in view.completions or ():
            ends.setdefault(each.job_id, set()).add(each.ended_at)
    assert {job: len(times) for job, times in ends.items()} == {
        "0.0": 1,
        "1.0": 1,
        "2.0": 1,
        "9.0": 1,
    }


def test_a_second_class_of_one_id_is_left_out_and_told() -> None:
    first, other = (
        model.JobClass("jobs", 1000, 1, 1024, waiting=2),
        model.JobClass("other", 0, 1, 1024, waiting=1),
    )
    second = model.JobClass("jobs", 200, 64, 4096, waiting=50)
    border = Sanitizer()
    taken = border.sanitized(model.OverlayView(NOW, (first, other, second)), NOW, 0.0)
    assert taken.classes == (first, other)
    assert "class jobs: a second one of this id" in taken.notices[0] and not taken.remarks
    assert border.sanitized(model.OverlayView(NOW, (first, other)), NOW, 0.0).notices == ()


def test_a_view_of_services_is_repaired_like_the_others() -> None:
    service = model.ServiceView("cms", requests=5, requests_per_s=nan, by_vo={"cms": 5})
    view = model.ServicesView(NOW, (service,))

    assert Sanitizer().sanitized(view, NOW, 0.0) == replace(
        view,
        services=(replace(service, requests_per_s=0.0),),
        notices=("1 values that cannot be: service cms: requests_per_s = nan",),
    )
