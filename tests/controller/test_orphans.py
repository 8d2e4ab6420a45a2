"""A lost or copied record, and a second controller of the same name: no job is lost, and both controllers report it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from provisioner import model
from provisioner.answers.troubles import TroubleContext, troubles
from provisioner.model import DroneId, RemoteState, RequestKind
from tests.controller.world import Place, Pool, in_virtual_time, run_for, serving, wall
from tests.store.story import TemporaryStore


@dataclass
class Claimed(Place):
    """A site at which others may hold claims under our name."""

    others: list[str] = field(default_factory=list)

    async def claim(self, birth: str) -> Sequence[str]:
        return self.others


def running(serial: int, birth: str = "old1", epoch: int = 0) -> model.RemoteDrone:
    return model.RemoteDrone(
        DroneId(f"kit-{birth}-{serial}"), RemoteState.RUNNING, f"r-{serial}", "gpu", epoch=epoch
    )


def place(*drones: model.RemoteDrone) -> Place:
    return Place(running={drone.drone_id: drone for drone in drones})


def told(store: TemporaryStore) -> Counter[str]:
    return Counter(event.name for event in store.reader().events())


def critical(store: TemporaryStore) -> set[str]:
    """Kinds of the troubles that `status` shows as critical or as a warning."""
    reader = store.reader()
    plan, events = reader.plans(limit=1)[0], reader.events()
    facts = TroubleContext(wall(), reader.holder(), reader.views(), plan, (), (), events)
    return {f"{each.severity} {each.kind}" for each in troubles(facts)}


@in_virtual_time
async def test_drones_of_a_lost_record_run_on_until_an_operator_decides() -> None:
    here, store, pool = place(running(3), running(4, epoch=2)), TemporaryStore(), Pool(())
    async with serving(here, store=store, pool=pool) as controller:
        await controller.tick()
        assert "critical orphans-kept" in critical(store), "from the first tick on"
        await run_for(controller, 3000.0)
        assert here.told == [] and set(here.running) == {"kit-old1-3", "kit-old1-4"}
        assert told(store) == {"orphan.found": 1}
        [found] = store.reader().events()
        assert found.fields["ids"] == "kit-old1-3, kit-old1-4 (epoch 2)"
        ask = store.reader().ask
        ask(RequestKind.ADOPT_ORPHANS, [DroneId("here")], reason="lost", by="anna", at=wall())
        await controller.tick()
        assert set(store.drones) == set(here.running) and told(store)["orphan.adopted"] == 2
        await controller.tick()
        assert "critical orphans-kept" not in critical(store)
        here.running["kit-old1-9"] = running(9)
        ask(RequestKind.STOP_ORPHANS, [DroneId("here")], reason="a test", by="anna", at=wall())
        await controller.tick()
        assert here.told == ["stop kit-old1-9"] and told(store)["orphan.stop_ordered"] == 1


@in_virtual_time
async def test_a_twin_is_known_by_its_new_drones_and_both_stop_acting() -> None:
    here, store, pool = place(running(3)), TemporaryStore(), Pool(())
    async with serving(here, store=store, pool=pool) as controller:
        await run_for(controller, 100.0)
        assert "critical live-twin" not in critical(store)
        here.running["kit-old1-4"] = running(4)
        pool.classes = (model.JobClass("jobs", 1000, 1, 1024, waiting=5),)
        await controller.tick()
        assert here.told == [] and {"critical live-twin", "critical orphans-kept"} <= critical(
            store
        )
        (event,) = [
            each for each in store.reader().events() if each.name == "controller.twin_found"
        ]
        assert event.fields["record"] == "kit-old1"
        here.running.clear()
        await controller.tick()
        assert here.told and told(store)["controller.twin_gone"] == 1, "with its drones it is gone"


@in_virtual_time
async def test_a_twin_is_known_by_its_claim_at_the_site_also_one_with_a_copied_record() -> None:
    here, store = Claimed(others=["mem0 with pid 17"]), TemporaryStore()
    async with serving(here, store=store) as controller:
        await controller.tick()
        assert here.told == [] and "critical live-twin" in critical(store)
        here.others.clear()
        await controller.tick()
        assert here.told == ["start kit-mem0-1"]


@in_virtual_time
async def test_drones_that_somebody_else_stops_are_a_trouble() -> None:
    here, store = Place(), TemporaryStore()
    jobs = (model.JobClass("jobs", 1000, 1, 1024, waiting=4),)
    async with serving(here, store=store, pool=Pool(jobs), max_drones=4) as controller:
        await controller.tick()
        await controller.tick()
        for number, (drone_id, remote) in enumerate(list(here.running.items())):
            end = model.RemoteEnd(model.EndKind.STOPPED, wall(), 0, "asked to leave")
            here.running[drone_id] = replace(remote, state=RemoteState.ENDED, end=end)
            await controller.tick()
            assert told(store)["drone.stopped_elsewhere"] == number + 1
            assert ("warning stopped-elsewhere" in critical(store)) is (number >= 2), (
                "several in a row"
            )
