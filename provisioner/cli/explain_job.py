"""A job that does not wait, explained from the record: it runs in a drone or elsewhere, is held, or is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provisioner import formatting
from provisioner.cli import job_ids
from provisioner.cli.cells import span_s, text, time_at, words
from provisioner.cli.listing import Column, Document, Listing
from provisioner.model import JobClass
from provisioner.store import Reader, Views

SCHEMA = "provisioner.job/1"
BACK_S = 7 * 86400.0
"""Age up to which finished jobs are searched."""


@dataclass(frozen=True, slots=True)
class KnownJob:
    """Facts about a job that does not wait."""

    job: str
    state: str
    said: str
    drone: str = ""
    class_id: str = ""
    ended_at: float = 0.0
    run_s: float | None = None


def known_job(reader: Reader, views: Views, classes: Sequence[JobClass], title: str, now: float) -> KnownJob | None:
    """Return a job that runs, is held, or is done; None if the record does not know it."""
    job = job_ids.parse(title)
    view = views.overlay.view
    if job is None or view is None:
        return None
    for slot in view.slots:
        if job_ids.holds(slot.job_ids, job):
            since = f" since {formatting.iso(slot.begun_at)}" if slot.begun_at else ""
            said = f"runs in drone {slot.drone_id}{since}; `provisioner drones show {slot.drone_id}` tells its life"
            return KnownJob(title, "running", said, drone=slot.drone_id)
    for each in classes:
        if job_ids.holds(each.running_ids, job):
            return KnownJob(title, "running", "runs, but in no drone of this controller", class_id=each.id)
        if job_ids.holds(each.held_ids, job):
            said = "is held: nothing is started for it. `condor_q -hold` tells why, `condor_release` lets it wait again"
            return KnownJob(title, "held", said, class_id=each.id)
    for done in reversed(reader.completions(now - BACK_S, now + BACK_S)):
        if job_ids.holds(done.job_id, job):
            where = f" in drone {done.drone_id}" if done.drone_id else ""
            ran = formatting.seconds(round(done.run_s))
            said = f"is done since {formatting.iso(done.ended_at)}: it ran for {ran}{where}"
            return KnownJob(title, "done", said, done.drone_id or "", ended_at=done.ended_at, run_s=done.run_s)
    return None


def job_document(known: KnownJob) -> Document:
    """Return the document of ``explain job`` for a job that does not wait."""
    return Document(
        SCHEMA, Listing("", _columns(), [known], lambda k: k.job), scope=f"job {formatting.sanitize(known.job, 80)}"
    )


def _columns() -> tuple[Column[KnownJob], ...]:
    return (
        text("job", lambda k: k.job, "Id, as it was asked for.", level=0),
        Column[KnownJob](
            "state", lambda k: k.state, "State at the newest look.", level=0, choices=("running", "held", "done")
        ),
        words("said", lambda k: k.said, "The same in words, with what to do.", level=0, head="which", least=30),
        text("drone", lambda k: k.drone, "Drone that it runs or ran in; empty: none of this controller.", level=0),
        text("class", lambda k: k.class_id, "Its class; empty: not told."),
        time_at("ended_at", lambda k: k.ended_at, "When it was done."),
        span_s("run_s", lambda k: k.run_s, "How long its last run took, seconds; null: it is not done."),
    )
