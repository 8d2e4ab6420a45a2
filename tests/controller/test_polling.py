"""Polls: each has a deadline and one retry."""

from __future__ import annotations

import asyncio

from provisioner.controller.polling import RETRY_AFTER_S, PollTarget
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind, SiteView
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
