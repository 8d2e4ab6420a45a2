"""The record of faults on shared GPUs: events, a restart, a reset by an operator, and the end of its window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from provisioner import model
from provisioner.model import Blame, BreakerState, DroneId
from tests.controller.world import EPOCH, JOB, Place, Pool, in_virtual_time, run_for, serving, wall
from tests.store.story import TemporaryStore

D_1, D_2 = DroneId("kit-a-1"), DroneId("kit-a-2")
WINDOW_S = 7 * 86400.0


@dataclass
class Faulty(Pool):
    """A pool in which drones report faults."""

    told: list[model.JobFailure] = field(default_factory=list)

    async def poll(self, types: Sequence[model.DroneType]) -> model.OverlayView:
        return replace(await super().poll(types), mishaps=tuple(self.told))


def failure(
    job: str, at: float, blame: Blame = Blame.JOB, drone_id: DroneId = D_1
) -> model.JobFailure:
    return model.JobFailure(drone_id, f"schedd#{job}", at, "ann", "faulted on a shared GPU", blame)


def events(store: TemporaryStore) -> list[tuple[str, object]]:
    return [
        (e.name, e.fields.get("job")) for e in store.reader().events() if e.name.startswith("job.")
    ]


@in_virtual_time
async def test_faults_are_recorded_once_survive_a_restart_and_expire() -> None:
    store, pool = TemporaryStore("kit", 1e9, 10), Faulty(classes=())
    pool.told = [
        failure("1.0", wall()),
        failure("2.0", wall() + 1, drone_id=D_2),
        failure("3.0", wall(), Blame.COLLATERAL),
    ]
    async with serving(Place(), store=store, pool=pool) as controller:
        await run_for(controller, 60)
        assert store.breakers[model.Scope(user="ann")].state is BreakerState.BANNED
        faulted, beside = "job.faulted", "job.collateral"
        assert sorted(events(store)) == [
            (beside, "schedd#3.0"),
            (faulted, "schedd#1.0"),
            (faulted, "schedd#2.0"),
        ]
    async with serving(Place(), store=store, pool=pool) as controller:
        known = store.breakers[model.Scope(user="ann")]
        assert known.failures == 2 and len(known.faults) == 3, "as before the restart"
        await run_for(controller, 60)
        assert store.breakers[model.Scope(user="ann")] == known and len(events(store)) == 3, (
            "told again, and nothing new"
        )
        assert store.reader().snapshot() is not None
        pool.told = []
        controller.policy = replace(controller.policy, interval_s=3600.0)
        await run_for(controller, WINDOW_S + 7200)
        assert model.Scope(user="ann") not in store.breakers
    async with store:
        assert model.Scope(user="ann") not in store.breakers, "nor in the file"


@in_virtual_time
async def test_an_operator_forgets_the_faults_of_a_user() -> None:
    store, pool = TemporaryStore("kit", 1e9, 10), Faulty(classes=())
    pool.told = [failure("1.0", wall() - 5), failure("2.0", wall() - 4, drone_id=D_2)]
    async with serving(Place(), store=store, pool=pool) as controller:
        await run_for(controller, 30)
        assert store.breakers[model.Scope(user="ann")].state is BreakerState.BANNED
        store.reader().ask(
            model.RequestKind.RESET, [DroneId("user:ann")], reason="fixed", by="mg", at=EPOCH
        )
        await run_for(controller, 60)
        assert store.breakers[model.Scope(user="ann")].state is BreakerState.ACTIVE, (
            "though the drone reports them still"
        )
        assert len(events(store)) == 2
        (told,) = (e.fields for e in store.reader().events() if e.name == "breaker.reset")
        assert (told["scopes"], told["by"]) == ("user:ann", "mg")
        pool.told.append(failure("3.0", wall()))
        await run_for(controller, 30)
        assert store.breakers[model.Scope(user="ann")].failures == 1, "a new one counts"


@in_virtual_time
async def test_a_collateral_record_alone_can_be_forgotten_too() -> None:
    store, pool = TemporaryStore("kit", 1e9, 10), Faulty(classes=())
    pool.told = [
        failure("1.0", wall() - 5, Blame.COLLATERAL),
        failure("1.0", wall() - 200, Blame.COLLATERAL),
    ]
    async with serving(Place(), store=store, pool=pool) as controller:
        await run_for(controller, 30)
        assert (
            store.breakers[model.Scope(user="ann")].state is BreakerState.BANNED
            and not store.breakers[model.Scope(user="ann")].failures
        )
        store.reader().ask(
            model.RequestKind.RESET, [DroneId("user:ann")], reason="alone", by="mg", at=EPOCH
        )
        await run_for(controller, 30)
        assert store.breakers[model.Scope(user="ann")].state is BreakerState.ACTIVE


@in_virtual_time
async def test_the_end_of_a_drone_in_which_jobs_failed_is_part_of_the_snapshot() -> None:
    store, here, pool = TemporaryStore("kit", 1e9, 10), Place(), Faulty(classes=(JOB,))
    async with serving(here, store=store, pool=pool) as controller:
        await run_for(controller, 20)
        (drone_id,) = store.drones
        end = model.RemoteEnd(model.EndKind.PREEMPTED, wall())
        here.running[drone_id] = replace(
            here.running[drone_id], state=model.RemoteState.ENDED, end=end
        )
        pool.classes = ()
        await run_for(controller, 60)
        assert drone_id not in store.drones
        del here.running[drone_id]
        pool.told = [model.JobFailure(drone_id, "1.0", wall(), "ann", "broke off after 3 s")]
        await controller.tick()
        assert (await controller._poll()).ended == {drone_id: model.DroneState.PREEMPTED}
