"""``provisioner explain``: why a job waits, why a drone is as it is, what becomes of a class; from the record alone."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli import complete
from provisioner.cli.exits import Failure
from provisioner.cli.listing import Document
from provisioner.cli.options import Show, Where, shared
from provisioner.cli.output import present
from provisioner.cli.resolve import named
from provisioner.cli.where import open_record
from provisioner.model import JobClass
from provisioner.store import Reader, Views

app = typer.Typer(cls=complete.Hints, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def explain() -> None:
    """Explain a job, a drone or a job class.

    Why a job waits, why a drone is in its state and what comes next, how a job class fits each drone type.

    \b
    Examples:
      provisioner explain job 204.17
      provisioner explain drone slot1@gpu07.example.org
      provisioner explain class 12
    """


@app.command("job")
@shared
def explain_job(
    where: Where, show: Show, job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a job, as 204.17.")]
) -> None:
    """Explain why a job waits, or where it is.

    Of one that waits its class, what the newest plan says of that, and how each drone type fits. Of one that runs or is
    done the drone; one that is held says so.

    \b
    Examples:
      provisioner explain job 204.17
      provisioner explain job schedd.example.org#204.17
      provisioner explain job 17 -o json
    """
    reader = open_record(where)
    present(show, lambda: _job(reader, job_id))


@app.command("class")
@shared
def explain_class(
    where: Where,
    show: Show,
    class_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id, as `demand` shows it.", autocompletion=complete.classes)
    ],
) -> None:
    """Explain why the jobs of a class wait.

    Every reason of the newest plan in words, and for each drone type the first dimension that does not fit.

    \b
    Examples:
      provisioner explain class 12
      provisioner explain class 12 -o wide
      provisioner explain class 12 -o json | jq '.types[] | select(.fits)'
    """
    reader = open_record(where)
    present(show, lambda: _class(reader, class_id))


@app.command("drone")
@shared
def explain_drone(
    where: Where,
    show: Show,
    any_id: Annotated[str, typer.Argument(metavar="ID", help="Any id of a drone.", autocompletion=complete.any_drones)],
) -> None:
    """Explain why a drone is as it is.

    Why it is in its state, how long that may last, and what happens then.

    \b
    Examples:
      provisioner explain drone kit-x7q2-17
      provisioner explain drone 8812.0
      provisioner explain drone 17 -o json
    """
    from provisioner.cli.explain_drone import explained_drone
    from provisioner.cli.resolve import the_drone

    reader = open_record(where)
    present(show, lambda: explained_drone(reader, the_drone(reader, any_id), time.time()))


# -------------------------------------------------------------------------------------------------------------- finding


def _job(reader: Reader, text: str) -> Document:
    from provisioner.cli import job_ids

    views, classes = _classes(reader)
    job = job_ids.parse(text)
    if job is None:
        raise Failure(f"{formatting.sanitize(text, 80)!r} is not a job id: write it as 204.17, 17 or schedd#204.17")
    found = job_ids.classes_of(job, classes)
    match found:
        case [one]:
            return _explained(reader, views, one, f"job {formatting.sanitize(text, 80)}")
        case []:
            from provisioner.cli.explain_job import job_document, known_job

            known = known_job(reader, views, classes, text.strip(), time.time())
            if known is None:
                raise Failure(*_unknown_job(text, views, classes))
            return job_document(known)
        case _:
            raise Failure(
                f"job {formatting.sanitize(text, 80)} may be in {len(found)} classes: {named([c.id for c in found])}",
                "say the whole id (schedd#cluster.process), or explain the class",
            )


def _unknown_job(text: str, views: Views, classes: list[JobClass]) -> list[str]:
    """Why a job may not be known, and what is."""
    from provisioner.cli import job_ids

    assert views.overlay.view is not None
    when = formatting.ago(views.overlay.view.taken_at, time.time())
    lines = [
        f"job {formatting.sanitize(text, 80)} is unknown: at the newest look, {when} ago, it was neither idle, running "
        "nor held, and it was not done in the last 7 days. It may be too new, removed, or in a queue that is not "
        "looked at"
    ]
    if not any(not kind.gpu_milli for kind in views.types):
        lines.append("jobs that ask for no GPU are not looked at: no drone type without GPUs is configured")
    cut = [c.id for c in classes if job_ids.shortened(c.job_ids)]
    if cut:
        lines.append(f"the lists of ids are shortened for classes {named(cut)}: it may be in one of them")
    known = [f"{c.id} ({formatting.sanitize(c.job_ids, 40)})" for c in classes if c.job_ids]
    if known:
        lines.append(f"classes with idle jobs: {named(known)}")
    return lines


def _class(reader: Reader, class_id: str) -> Document:
    from provisioner.planner.headroom import headroom_classes

    views, classes = _classes(reader)
    classes += headroom_classes(views.policy, views.types, time.time())
    for job in classes:
        if job.id == class_id:
            return _explained(reader, views, job, f"class {formatting.sanitize(job.id, 80)}")
    from difflib import get_close_matches

    ids = [c.id for c in classes]
    near = get_close_matches(class_id[:200], ids, n=3, cutoff=0.4) or ids[:3]
    raise Failure(
        f"no job class {formatting.sanitize(class_id, 80)} in the newest look"
        + (f"; nearest: {named(near)}" if near else "; there is none at all")
    )


def _classes(reader: Reader) -> tuple[Views, list[JobClass]]:
    views = reader.views()
    if views is None:
        raise Failure("no tick is on record yet: `provisioner run` makes the first")
    if views.overlay.view is None:
        fault = formatting.sanitize(views.overlay.fault.message, 200) if views.overlay.fault else "no reason on record"
        raise Failure(f"the overlay was never seen: {fault}")
    return views, list(views.overlay.view.classes)


def _explained(reader: Reader, views: Views, job: JobClass, title: str) -> Document:
    from provisioner.cli.explain_class import explained_class

    return explained_class(reader, views, job, title, time.time())
