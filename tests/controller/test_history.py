"""The history of sites and pool is known at the first decision, and never counts twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from math import inf, nan

import pytest

from provisioner import model
from provisioner.controller import estimation
from provisioner.controller.estimation import SEEN_S, USE_EVERY_S, USE_KEPT, EstimateCollector
from provisioner.controller.history import (
    ASK_AGAIN_S,
    FIRST_TICK_WAIT_S,
    HISTORY_DEADLINE_S,
    MAX_TRIES,
    HistoryLoader,
    held_at,
    mean_queues,
    sane_runs,
)
from provisioner.controller.loop import Controller
from provisioner.controller.polling import OPEN_WAIT_S, LazySite
from provisioner.estimates import UNKNOWN, HistorySummary, StartDelays
from provisioner.history import (
    HISTORY_S,
    PastStart,
    RunHistoryView,
    SiteHistoryView,
    known_since,
    use_steps,
)
from provisioner.interfaces import UnavailableError
from provisioner.planner import decide
from provisioner.planner.costs import PRIOR_DELAYS
from provisioner.simulator.loop import VirtualClock
from tests.controller.test_estimate_recorder import BusyPool
from tests.controller.world import EPOCH, GPU, Place, in_virtual_time, run_for, serving, wall, work
from tests.planner.scenes import snapshot
from tests.store.story import TemporaryStore

DAY_S = 86400.0
NO_PAST, NO_RUNS = SiteHistoryView(), RunHistoryView()


def run(n: int, ended_at: float, run_s: float = 500.0) -> model.CompletedJob:
    return model.CompletedJob(
        f"old{n}.0", ended_at, ended_at - run_s, run_s, 1000, 1, 1024, owner="anna"
    )


@dataclass
class OldPlace(Place):
    """A site with a history, and with an owner who holds four GPUs now."""

    past: SiteHistoryView | Exception = NO_PAST
    asked: list[float] = field(default_factory=list)
    takes_s: float = 0.0

    async def history(self, since: float) -> SiteHistoryView:
        self.asked.append(since)
        await asyncio.sleep(self.takes_s)
        if isinstance(self.past, Exception):
            raise self.past
        return self.past

    async def poll(self) -> model.SiteView:
        return replace(await super().poll(), owner_runs=model.OwnerLoad(gpu_milli=4000))


@dataclass
class OldPool(BusyPool):
    past: RunHistoryView = NO_RUNS

    async def history(self, since: float) -> RunHistoryView:
        return self.past


def daily(gpus: int, days: int = 10) -> SiteHistoryView:
    """Steps of an owner who holds some GPUs for twelve hours of each day, up to now."""
    steps = [(EPOCH - n * DAY_S / 2, gpus * 1000 * (n % 2)) for n in range(2 * days, 0, -1)]
    return SiteHistoryView(
        tuple(steps), (PastStart("gpu", EPOCH - 50, 600.0), PastStart("gpu", EPOCH - 90, 800.0))
    )


def events(controller: Controller) -> list[tuple[str, dict[str, object]]]:
    store = controller.store
    assert isinstance(store, TemporaryStore)
    return [
        (e.name, dict(e.fields)) for e in store.reader().events() if e.name.startswith("history.")
    ]


@in_virtual_time
async def test_the_first_decision_knows_the_past() -> None:
    snapshots: list[model.Snapshot] = []
    place, pool = (
        OldPlace(past=daily(8)),
        OldPool(past=RunHistoryView(tuple(run(n, EPOCH - 5000 - n) for n in range(30)))),
    )
    async with serving(place, pool=pool) as controller:

        def planner(snapshot: model.Snapshot) -> model.Plan:
            snapshots.append(snapshot)
            return decide(snapshot)

        controller.planner = planner
        await run_for(controller, 300.0)
        first = snapshots[0].estimates
        rise = first.rises["here"]
        assert rise.chances(7999)[-1] > 0.3 and rise.chances(8000)[0] < 0.001, (
            "never seen in ten days"
        )
        assert first.delays == {GPU.key: StartDelays(700.0, PRIOR_DELAYS.boot_s)}
        assert first.runs["anna"][0] == 500.0
        use = controller.estimation.sites["here"].use_milli
        assert list(use)[-3:] == [4000] * 3 and list(use)[-4] == 8000, (
            "what it sees itself continues the past"
        )
        assert place.asked == [EPOCH - HISTORY_S], "once"
        assert events(controller) == [
            (
                "history.read",
                {"of": "overlay", "owner_s": 0, "types": 0, "jobs": 30, "left_out": 0},
            ),
            (
                "history.read",
                {"of": "here", "owner_s": 10 * DAY_S, "types": 1, "jobs": 0, "left_out": 0},
            ),
        ]


@in_virtual_time
async def test_a_restart_does_not_ask_again_and_an_operator_can_have_it_forgotten() -> None:
    place, store = OldPlace(past=daily(8)), TemporaryStore("kit", 1e9, 10)
    async with serving(place, store=store) as controller:
        await run_for(controller, 60.0)
    store.reader().ask_estimate_reset("site:here", reason="another owner", by="mg", at=wall())
    async with serving(place, store=store) as controller:
        assert (
            controller.estimation.estimates.delays == {}
            and controller.estimation.estimates.rises == {}
        )
        await run_for(controller, 60.0)
        assert place.asked == [EPOCH - HISTORY_S], "or it would be learned anew"
        at = controller.estimation.histories["here"].at
        assert at > EPOCH and controller.estimation.histories == {"here": HistorySummary(at)}


@pytest.mark.parametrize("what", ["all", "site:here", "user:anna"])
@in_virtual_time
async def test_what_is_forgotten_does_not_come_back_from_a_history_that_was_never_read(
    what: str,
) -> None:
    """As after an upgrade: estimates are on record, the histories were not read."""
    place, pool, store = OldPlace(), OldPool(), TemporaryStore("kit", 1e9, 10)
    async with serving(place, pool=pool, store=store) as controller:
        await run_for(controller, 900.0)
        assert "" in controller.estimation.runs
    store.reader().ask_estimate_reset(what, reason="test", by="mg", at=wall())
    place, pool = (
        OldPlace(past=daily(8)),
        OldPool(past=RunHistoryView(tuple(run(n, EPOCH - 9e4) for n in range(30)))),
    )
    pool.every_s = 1e9
    async with serving(place, pool=pool, store=store) as controller:
        await run_for(controller, 60.0)
        known = controller.estimation
        assert bool(place.asked) is (what == "user:anna") and bool(known.estimates.delays) is (
            what == "user:anna"
        )
        assert ("anna" in known.runs) is (what == "site:here") and 500.0 not in known.runs.get(
            "anna", ()
        )


@pytest.mark.parametrize("what", ["all", "site:here"])
@in_virtual_time
async def test_an_answer_that_was_asked_for_before_is_not_taken(what: str) -> None:
    place, store = OldPlace(past=daily(8), takes_s=55.0), TemporaryStore("kit", 1e9, 10)
    async with serving(place, store=store) as controller:
        asyncio.get_running_loop().call_later(
            20.0, lambda: store.reader().ask_estimate_reset(what, reason="test", by="mg", at=wall())
        )
        controller.recorder._asked_at = wall() - 30
        await run_for(controller, 300.0)
        assert len(place.asked) == 1 and not controller.estimation.estimates.delays
        assert len(controller.estimation.sites["here"].use_milli) < 10 and not events(controller)


@in_virtual_time
async def test_the_question_to_a_site_that_is_removed_or_rebuilt_is_dropped() -> None:
    async def event(name: str, **_: object) -> None:
        raise AssertionError(name)

    first, second = OldPlace(past=daily(8), takes_s=50.0), OldPlace(takes_s=50.0)
    learning = EstimateCollector()
    loader = HistoryLoader(learning, VirtualClock(), event)
    async with asyncio.TaskGroup() as group:
        for place in (first, second):
            await loader.turn(work(group, sites={"here": place}, overlay=BusyPool()))  # type: ignore[dict-item]
            await asyncio.sleep(1.0)
        assert len(first.asked) == len(second.asked) == 1
        await loader.turn(work(group, overlay=BusyPool()))
        await asyncio.sleep(100.0)
        await loader.turn(work(group, overlay=BusyPool()))
    assert wall() < EPOCH + 110 and not learning.histories


@in_virtual_time
async def test_a_cancelled_beginning_leaves_no_task() -> None:
    controller_tasks = asyncio.all_tasks()
    async with serving(OldPlace(takes_s=1e6)) as controller:
        beginning = asyncio.ensure_future(run_for(controller, 1e6))
        await asyncio.sleep(1.0)
        beginning.cancel()
        await asyncio.wait([beginning])
        await asyncio.sleep(0)
        left = {task.get_coro().__qualname__ for task in asyncio.all_tasks() - controller_tasks}  # type: ignore[union-attr]
        assert not left & {"wait", "Event.wait"}


@in_virtual_time
async def test_a_silent_site_delays_the_first_decision_for_a_moment_and_costs_a_line() -> None:
    async with serving(OldPlace(takes_s=1e6), pool=BusyPool()) as controller:
        await run_for(controller, FIRST_TICK_WAIT_S - 1)
        assert controller.store.tick == 0
        await run_for(controller, HISTORY_DEADLINE_S + 30)
        assert controller.store.tick > 0
        ((name, fields),) = events(controller)
        assert name == "history.read_failed" and "no answer within its deadline" in str(
            fields["why"]
        )


async def reported_in_six_hours(place: OldPlace) -> list[str]:
    """Ask a site for its past again and again, and return what is reported."""
    told: list[str] = []

    async def event(name: str, *, warn: bool = False, **fields: object) -> None:
        told.append(f"{name}: {fields['why']}")

    loader = HistoryLoader(EstimateCollector(), VirtualClock(), event)
    async with asyncio.TaskGroup() as group:
        for _ in range(6 * 6):
            await loader.turn(work(group, sites={"here": place}, overlay=BusyPool()))  # type: ignore[dict-item]
            await asyncio.sleep(ASK_AGAIN_S / 6)
    return told


@in_virtual_time
async def test_a_site_that_fails_is_asked_again_and_then_given_up() -> None:
    place = OldPlace(past=UnavailableError("condor_history: denied"))
    told = await reported_in_six_hours(place)
    assert len(place.asked) == len(told) == MAX_TRIES
    assert told[-2:] == [
        "history.read_failed: condor_history: denied; the next attempt is in 1h",
        "history.read_failed: condor_history: denied",
    ]


@in_virtual_time
async def test_a_late_answer_comes_before_what_was_seen_meanwhile() -> None:
    place = OldPlace(past=daily(8), takes_s=55.0)
    jobs = [run(n, EPOCH - SEEN_S - 100 + 10 * n) for n in range(30)]
    pool = OldPool(past=RunHistoryView(tuple(jobs)))
    async with serving(place, pool=pool) as controller:
        await run_for(controller, 600.0)
        use = list(controller.estimation.sites["here"].use_milli)
        assert (
            use[-5:] == [4000] * 5 and use[-6] == 8000 and len(use) == 10 * DAY_S / USE_EVERY_S + 5
        )
        runs = controller.estimation.runs["anna"]
        early = sum(job.ended_at < EPOCH + FIRST_TICK_WAIT_S - SEEN_S for job in jobs)
        assert runs[:early] == (500.0,) * early and set(runs[early:]) == {60.0}, (
            "the others are left to the pool"
        )


@in_virtual_time
async def test_what_a_drone_took_replaces_the_assumed_boot_and_moves_the_queue() -> None:
    learning = EstimateCollector()
    learning.learn_site("here", lambda at: None, {GPU.key: 1000.0}, EPOCH)
    was = model.Drone(
        model.DroneId("kit-1"), GPU.key, model.DroneState.BOOTING, EPOCH, EPOCH - 130, 1000
    )
    was = replace(was, started_at=EPOCH - 30)
    joined = model.StateChange(
        replace(was, joined_at=EPOCH, state=model.DroneState.IDLE), was.state, None
    )  # type: ignore[arg-type]
    learning._note_move(was, joined.drone, EPOCH, watched=True)
    weight = estimation.MEAN_WEIGHT
    assert learning.delays[GPU.key] == StartDelays(1000.0 + weight * (100.0 - 1000.0), 30.0)


def test_values_that_make_no_sense_are_left_out() -> None:
    steps = (
        (nan, 1),
        (-5.0, 1000),
        (EPOCH - 900, -3),
        (EPOCH - 600, 2000),
        (EPOCH + 9, 7),
        (EPOCH - 300, 1 << 60),
    )
    held = held_at(SiteHistoryView(steps), EPOCH)
    assert held(EPOCH - 601) is None and held(EPOCH) == 2000
    starts = [
        PastStart("gpu", EPOCH - n, q)
        for n, q in ((1, 10.0), (2, nan), (3, -1.0), (4, inf), (-9, 5.0))
    ]
    assert mean_queues("here", starts, {"gpu"}, EPOCH) == {"here/gpu": 10.0}
    long = run(6, EPOCH - 9, 20 * DAY_S)
    odd = [
        run(0, EPOCH - 9, -5.0),
        run(1, nan),
        run(2, EPOCH + 9),
        run(3, EPOCH - 9, nan),
        run(4, EPOCH - 9, 1e9),
    ]
    assert [each.job_id for each in sane_runs([*odd, run(5, EPOCH - 9), long], EPOCH)] == [
        "old5.0",
        "old6.0",
    ]


@in_virtual_time
async def test_an_answer_of_the_wrong_type_ends_nothing() -> None:
    place = OldPlace(past=SiteHistoryView((("yesterday", None),)))  # type: ignore[arg-type]
    async with serving(place) as controller:
        await run_for(controller, 60.0)
        assert [name for name, _ in events(controller)] == [
            "history.read_failed"
        ] and controller.store.tick > 0


@in_virtual_time
async def test_it_ends_while_a_site_is_being_asked() -> None:
    async with serving(OldPlace(takes_s=1e6)) as controller:
        await run_for(controller, 3.0)
    assert wall() < EPOCH + 10


@pytest.mark.parametrize("kept", [0, 5, USE_KEPT - 2])
def test_no_more_than_a_fortnight_is_kept_and_own_samples_stay(kept: int) -> None:
    learning = EstimateCollector()
    site = learning._site("here")
    site.use_milli.extend([1000] * kept)
    site.used_at = EPOCH if kept else 0.0
    learning.learn_site("here", lambda at: 7000, {}, EPOCH + 60)
    assert len(site.use_milli) == USE_KEPT and list(site.use_milli).count(1000) == kept
    assert site.use_milli[0] == 7000 and site.used_at == (
        EPOCH if kept else EPOCH + 60 - USE_EVERY_S
    )


@pytest.mark.parametrize("polls_first", [False, True])
@pytest.mark.parametrize("days", [2, 15])
def test_the_history_fills_the_time_in_which_the_controller_was_away(
    days: int, polls_first: bool
) -> None:
    now = EPOCH + days * DAY_S
    site = estimation.SiteHistory(used_at=EPOCH)
    site.use_milli.extend([1000] * 5)
    if polls_first:  # the first poll after the pause came before the answer
        learning = EstimateCollector(sites={"here": site})
        view = model.SiteView("here", now, {}, owner_runs=model.OwnerLoad(gpu_milli=9000))
        learning._note_use("here", model.PolledSite("here", view), replace(snapshot(), now=now))
    missed = min(days * DAY_S / USE_EVERY_S - polls_first, USE_KEPT - polls_first)
    added_s = site.learn_use(lambda at: 7000 if at > EPOCH else None, now)
    assert added_s == missed * USE_EVERY_S and site.used_at == now
    assert (
        list(site.use_milli)
        == ([1000] * 5 + [7000] * int(missed) + [9000] * polls_first)[-USE_KEPT:]
    )


def test_what_the_history_does_not_tell_stays_unknown() -> None:
    site = estimation.SiteHistory(used_at=EPOCH)
    site.use_milli.extend([1000, 1000])
    site.learn_use(lambda at: 7000 if at > EPOCH + DAY_S / 2 else None, EPOCH + DAY_S)
    assert list(site.use_milli) == [1000] * 2 + [UNKNOWN] * 360 + [7000] * 360
    site = estimation.SiteHistory(used_at=EPOCH)
    site.use_milli.extend([1000, 1000])
    assert site.learn_use(lambda at: None, EPOCH + 10 * USE_EVERY_S) == 0.0
    assert list(site.use_milli) == [1000, 1000], "a short pause gets the value of the next poll"


def test_jobs_that_an_earlier_controller_counted_do_not_count_again() -> None:
    before = EstimateCollector()
    jobs = [run(n, EPOCH - 9000 + n, 60.0 + n) for n in range(5)]
    before._note_runs(tuple(jobs), EPOCH - 8000)
    later = EstimateCollector()
    later.recall(replace(before.samples(EPOCH), runs={**before.runs, "gone": (7.0,)}), EPOCH, 1.0)
    later.counted_from = EPOCH
    later._note_runs((run(9, EPOCH + 30, 30.0),), EPOCH + 60)
    later.learn_runs(jobs, EPOCH + 60)
    assert later.runs["anna"] == (60.0, 61.0, 62.0, 63.0, 64.0, 30.0) and later.runs["gone"] == (
        7.0,
    )


@in_virtual_time
async def test_a_call_that_took_long_and_failed_is_not_repeated() -> None:
    place = OldPlace(past=UnavailableError("no answer within 50 s"), takes_s=50.0)
    told = await reported_in_six_hours(place)
    assert len(place.asked) == 1 and told == ["history.read_failed: no answer within 50 s"]


@in_virtual_time
async def test_a_history_leaves_the_connection_to_the_polls_after_a_moment() -> None:
    @dataclass
    class Hanging(OldPlace):
        hangs: bool = True

        async def __aenter__(self) -> Hanging:
            await asyncio.sleep(1e6 if self.hangs else 0)
            return self

        async def __aexit__(self, *exc: object) -> None: ...

    place = Hanging()
    site = LazySite(place)
    asked = asyncio.ensure_future(site.history(0.0))
    await asyncio.sleep(1.0)
    place.hangs = False
    await site.poll()
    assert wall() <= EPOCH + OPEN_WAIT_S + 1
    with pytest.raises(UnavailableError):
        await asked


def test_a_name_that_is_no_type_of_the_site_tells_no_queue_time() -> None:
    starts = [PastStart("gpu", EPOCH - 5, 10.0), PastStart("forged", EPOCH - 5, 10.0)]
    assert mean_queues("here", starts, {"gpu"}, EPOCH) == {"here/gpu": 10.0}


def test_a_site_that_is_known_well_is_not_counted_at_each_tick() -> None:
    learning = EstimateCollector()
    learning._site("here").use_milli.extend([1000] * 120)
    assert not learning.wants_history("here") and learning.wants_history("there")
    learning.sites["here"].use_milli.clear()
    assert not learning.wants_history("here")


def test_the_use_of_jobs_is_summed_up_as_steps() -> None:
    holds = [
        (50.0, 300.0, 1000),
        (150.0, 400.0, 2000),
        (300.0, 300.0, 1000),
        (200.0, 100.0, 5),
        (nan, 300.0, 1000),
    ]
    assert use_steps(holds, 100.0, 350.0) == ((100.0, 1000), (150.0, 3000), (300.0, 2000))
    assert use_steps([], 100.0, 200.0) == ((100.0, 0),)
    assert known_since([500.0, 300.0], 100.0) == 300.0 and known_since([50.0], 100.0) == 100.0


def test_a_pool_that_knows_jobs_is_not_asked() -> None:
    assert EstimateCollector().wants_history("") and not EstimateCollector(
        {"": (60.0,) * 10}
    ).wants_history("")
