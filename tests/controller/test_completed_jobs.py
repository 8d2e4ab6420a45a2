"""Each job that is done is written down once, and what cannot be written now is written later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from provisioner.controller.estimate_store import CompletedJobRecorder
from provisioner.model import CompletedJob, OverlayView
from provisioner.store import StoreUnusableError
from tests.store.story import TemporaryStore

ONE = CompletedJob("submit#1.0", 100.0, 10.0, 60.0, 1000, 1, 2048, owner="ann")
TWO = replace(ONE, job_id="submit#2.0", ended_at=130.0)
THREE = replace(ONE, job_id="submit#3.0", ended_at=160.0)


class Counted(TemporaryStore):
    """Notes what it is given; its disk may be full."""

    def __init__(self) -> None:
        super().__init__("kit", 1e9, 1)
        self.given: list[list[str]] = []
        self.full = False

    async def record_completed(self, completions: Sequence[CompletedJob]) -> None:
        if self.full:
            raise StoreUnusableError("no room")
        self.given.append([each.job_id for each in completions])
        await super().record_completed(completions)


def view(*done: CompletedJob) -> OverlayView:
    return OverlayView(200.0, completions=done)


async def test_what_is_told_in_many_looks_is_written_once() -> None:
    store, history = Counted(), CompletedJobRecorder()
    await history.keep(store, None)
    await history.keep(store, OverlayView(200.0))
    for told in (view(ONE), view(ONE), view(ONE, TWO), view(TWO, THREE), OverlayView(200.0), view(TWO, THREE)):
        await history.keep(store, told)
    assert store.given == [["submit#1.0"], ["submit#2.0"], ["submit#3.0"]]
    assert store.reader().completions(0.0, 1e9) == [ONE, TWO, THREE]


async def test_a_new_controller_offers_all_again_and_nothing_is_there_twice() -> None:
    store = Counted()
    await CompletedJobRecorder().keep(store, view(ONE, TWO))
    await CompletedJobRecorder().keep(store, view(TWO, THREE))
    assert store.reader().completions(0.0, 1e9) == [ONE, TWO, THREE]


async def test_what_a_full_disk_refuses_is_tried_again() -> None:
    store, history = Counted(), CompletedJobRecorder()
    store.full = True
    await history.keep(store, view(ONE))
    store.full = False
    await history.keep(store, view(ONE, TWO))
    assert store.given == [["submit#1.0", "submit#2.0"]]
