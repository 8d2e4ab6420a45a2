"""Polls: each has a deadline and one retry."""

from __future__ import annotations

import asyncio

from provisioner.controller.polling import RETRY_AFTER_S, PollTarget
from provisioner.controller.sanitize import Sanitizer
from provisioner.interfaces import UnavailableError
from provisioner.model import DroneId, FaultKind, RemoteDrone, RemoteState, SiteView
from provisioner.simulator.loop import VirtualClock, run_virtual

AT = 1000.0


class Eyes:
    """Gives its answers in turn; an error among them is raised."""

    def __init__(self, *answers: SiteView | Exception) -> None:
        self.answers = list(answers)
        self.asked_s: list[float] = []

    async def poll(self) -> SiteView:
        await asyncio.sleep(0)
        self.asked_s.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def watched(eyes: Eyes, *, looks: int = 1) -> PollTarget[SiteView]:
    """Return a watch after so many polls."""

    async def story() -> PollTarget[SiteView]:
        watch = PollTarget("kit", eyes.poll, 5.0)
        for _ in range(looks):
            await watch.once(VirtualClock())
        return watch

    return run_virtual(story(), start_epoch=AT)


def test_a_site_that_is_down_is_asked_once_more_after_a_while() -> None:
    eyes = Eyes(UnavailableError("no route"), SiteView("kit", AT))
    watch = watched(eyes)
    assert (watch.fault, watch.view) == (None, SiteView("kit", AT)), "its age counts from the first question"
    assert eyes.asked_s == [0.0, RETRY_AFTER_S]


def test_a_site_that_stays_down_is_a_fault_and_what_was_seen_stays() -> None:
    eyes = Eyes(SiteView("kit", AT), *(UnavailableError(f"no route {n}") for n in range(2)))
    watch = watched(eyes, looks=2)
    assert watch.fault is not None and watch.fault.kind is FaultKind.DOWN
    assert watch.fault.message == "no route 1", "the newest error is told"
    assert watch.view == SiteView("kit", AT)


def test_a_second_attempt_without_an_answer_leaves_the_error_of_the_first() -> None:
    """The deadline of both attempts does not say who was silent."""

    class Hanging(Eyes):
        async def poll(self) -> SiteView:
            if self.asked_s:
                await asyncio.sleep(60)
            return await super().poll()

    watch = watched(Hanging(UnavailableError("schedd b: no answer within 4 s"), SiteView("kit", AT)))
    assert watch.fault is not None and watch.fault.message == "schedd b: no answer within 4 s"


def test_a_listing_that_an_adapter_changes_in_place_is_seen_as_it_is_now() -> None:
    first, second = (RemoteDrone(DroneId(f"kit-ab12-{n}"), RemoteState.RUNNING) for n in (1, 2))
    drones, free = {first.drone_id: first}, {"a100": 3}
    border, view = Sanitizer(), SiteView("kit", AT, drones, free)
    assert border.sanitized(view, AT, 0.0) == border.sanitized(view, AT, 0.0)
    before = border.sanitized(view, AT, 0.0)
    drones[second.drone_id] = second
    free["a100"] = 2
    after = border.sanitized(view, AT, 0.0)
    assert (len(before.drones), len(after.drones)) == (1, 2)
    assert (before.free, after.free) == ({"a100": 3}, {"a100": 2})
    assert border.sanitized(view, AT - 7, 0.0).taken_at == AT - 7
