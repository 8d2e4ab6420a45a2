"""`explain job` answers for jobs that do not wait: one text stood for running, held, finished and unknown ones."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from provisioner.answers.explain import job_document, known_job
from provisioner.model import (
    CompletedJob,
    DroneId,
    JobClass,
    OverlayView,
    Policy,
    PolledOverlay,
    Slot,
    SlotState,
)
from provisioner.store import Views
from provisioner.store.reader import Reader

NOW = 1.7e9
SLOT = Slot(
    DroneId("kit-ab12-3"), SlotState.BUSY, NOW, jobs=1, begun_at=NOW - 60, job_ids="204.17, 205.0"
)
CLASS = JobClass(
    "7", 1000, 1, 1, running=3, held=2, running_ids="204.17, 300.0-300.2", held_ids="301.0"
)
VIEWS = Views(1, NOW, Policy(), (), PolledOverlay(OverlayView(NOW, (CLASS,), (SLOT,))), {})
DONE = CompletedJob(
    "schedd@a#199.0", NOW - 900, NOW - 2000, 45.0, 1000, 1, 1, drone_id=DroneId("kit-ab12-1")
)


class Record:
    """The part of a record that is asked."""

    def slots(self) -> tuple[Slot, ...]:
        return (SLOT,)

    def completions(
        self, since: float, until: float, cluster: int | None = None
    ) -> list[CompletedJob]:
        found = [DONE, replace(DONE, job_id="schedd@b#198.0", drone_id=None)]
        return [each for each in found if f"#{cluster}." in f"#{each.job_number}"]


@pytest.mark.parametrize(
    ("job", "state", "drone", "words"),
    [
        ("204.17", "running", "kit-ab12-3", "runs in drone kit-ab12-3 since 2023-11-14T22:12:20Z"),
        ("schedd@a#205.0", "running", "kit-ab12-3", "provisioner drones show kit-ab12-3"),
        ("300.1", "running", "", "in no drone of this controller"),
        ("301", "held", "", "condor_q -hold"),
        ("199.0", "done", "kit-ab12-1", "it ran for 45 s in drone kit-ab12-1"),
        ("schedd@b#198.0", "done", "", "it ran for 45 s"),
    ],
)
def test_a_job_that_does_not_wait_is_explained(
    job: str, state: str, drone: str, words: str
) -> None:
    known = known_job(cast(Reader, Record()), VIEWS, [CLASS], job)
    assert known is not None
    assert (known.state, known.drone) == (state, drone) and words in known.said
    assert job_document(known).plain()["state"] == state


@pytest.mark.parametrize("job", ["schedd@x#199.0", "1.0"])
def test_another_job_is_unknown(job: str) -> None:
    assert known_job(cast(Reader, Record()), VIEWS, [CLASS], job) is None
