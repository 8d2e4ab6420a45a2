"""Polls: each has a deadline and one retry."""

from __future__ import annotations

import asyncio

import pytest

from provisioner.controller.polling import RETRY_AFTER_S, PollTarget
from provisioner.interfaces import UnavailableError
from provisioner.model import SiteView
from provisioner.simulator.loop import VirtualClock, run_virtual

AT = 1000.0
SEEN = SiteView("kit", AT)
DOWN, DOWN_STILL = UnavailableError("no route"), UnavailableError("no route, still")


@pytest.mark.parametrize(
    ("answers", "fault", "view"),
    [
        pytest.param((DOWN, SEEN), None, SEEN, id="the age of a view counts from the first attempt"),
        pytest.param((SEEN, DOWN, DOWN_STILL), "no route, still", SEEN, id="the newest error, and the view stays"),
        # The deadline of both attempts does not say who was silent.
        pytest.param((DOWN, None), "no route", None, id="the error of the first attempt if the second hangs"),
    ],
)
def test_a_poll_without_an_answer_is_repeated_once(
    answers: tuple[SiteView | Exception | None, ...], fault: str | None, view: SiteView | None
) -> None:
    left, asked_s = list(answers), list[float]()

    async def poll() -> SiteView:
        asked_s.append(asyncio.get_running_loop().time())
        answer = left.pop(0)
        if answer is None:
            await asyncio.sleep(60)
        if isinstance(answer, Exception):
            raise answer
        return SEEN

    async def story() -> PollTarget[SiteView]:
        target = PollTarget("kit", poll, 5.0)
        while left:
            await target.once(VirtualClock())
        return target

    target = run_virtual(story(), start_epoch=AT)
    assert (target.fault and target.fault.message, target.view) == (fault, view)
    assert asked_s[-1] - asked_s[-2] == RETRY_AFTER_S
