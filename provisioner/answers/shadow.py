"""Comparison of a shadow with the other system."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from provisioner import formatting
from provisioner.answers.columns import (
    Document,
    Listing,
    ident,
    now,
    number,
    rounded,
    span_s,
    text,
    time_at,
    whole,
    words,
)
from provisioner.answers.errors import VerbError
from provisioner.simulator.results import WaitStatistics
from provisioner.simulator.shadow import Comparison, GpuUse, compare
from provisioner.store.reader import Reader

SHADOW_SCHEMA = "provisioner.shadow/1"
SYSTEMS = ("other", "ours")


class SystemUse(NamedTuple):
    """Use by one of the two systems, at a site or in all."""

    system: str
    site: str
    use: GpuUse
    waits: WaitStatistics | None
    saved_s: float | None = None
    """None for the other system."""


def _hours(gpu_s: float) -> str:
    return formatting.number(round(gpu_s / 3600, 2))


def _assumptions(found: Comparison) -> str:
    return (
        "same run times; GPUs that were free or held by the other system within a quarter of an hour; boot "
        f"{formatting.age(found.boot_s)}, negotiation every {formatting.age(found.cycle_s)}; no site queue, no failing "
        "drones, no owner who takes GPUs back; jobs fit by the numbers of their requests; time on hold is a wait of "
        "the other system's"
    )


_gpu_s = partial(number, convert=rounded, unit=_hours)
USE_COLUMNS = (
    ident("site", "Site; empty: all of them."),
    text(
        "system",
        "The other system (observed) or the controller (predicted).",
        level=0,
        choices=SYSTEMS,
    ),
    _gpu_s(
        "gpu_s",
        "GPU-seconds of drones: of the other system in the pool, of the controller with boot.",
        "use.held_s",
        head="GPU-H",
    ),
    _gpu_s(
        "busy_gpu_s",
        "Part of them claimed by jobs; for the controller, by runs that succeed.",
        "use.busy_s",
        head="USED",
    ),
    _gpu_s(
        "idle_gpu_s",
        "The remaining GPU-seconds; for the controller also boot, release and lost work.",
        "use.idle_s",
        head="IDLE",
    ),
    whole(
        "drones",
        "Drones of the other system that joined, or of the controller that start.",
        "use.drones",
        level=0,
    ),
    _gpu_s(
        "saved_gpu_s",
        "Idle time of the other system (replayed part) minus that of the controller; null for the other system.",
        "saved_s",
        null=True,
        head="SAVED",
    ),
    whole("jobs", "Jobs done; null: of one site.", "waits.jobs", level=0, null=True),
    span_s(
        "wait_mean_s",
        "Mean wait: end minus submission and run time.",
        "waits.mean_s",
        head="MEAN WAIT",
    ),
    span_s("wait_p95_s", "95 of 100 waited no longer.", "waits.p95_s", head="P95 WAIT"),
)
SHADOW_FACTS = (
    time_at("since_at", "Begin of the observed period.", "since", head="from"),
    time_at("until_at", "End of the observed period.", "until", head="until"),
    span_s("observed_s", "Time of the period with observations.", head="observed"),
    whole(
        "jobs", "GPU jobs submitted and completed in the period.", "their_waits.jobs", head="jobs"
    ),
    number(
        "replayed",
        "Share of the other system's used GPU time that belongs to these jobs.",
        convert=rounded,
        head="replayed",
    ),
    _gpu_s(
        "saved_gpu_s",
        "This share of the idle GPU-seconds of the other system, minus those of the controller.",
        lambda found: found.saved_s(found.theirs[""], found.ours[""]),
        head="GPU-h saved",
    ),
    words("assumptions", "Assumptions of the prediction.", _assumptions, head="assumed"),
)


def shadow_document(reader: Reader, since: float, boot_s: float, cycle_s: float) -> Document:
    """Return the comparison from ``since`` on. It replays the jobs: half a minute for a day of a thousand."""
    if not reader.is_shadow():
        raise VerbError(
            f"store {reader.path} is not the record of a shadow",
            "`provisioner run --shadow` makes one",
        )
    views = reader.views()
    observations = reader.observations(since)
    if views is None or not observations:
        raise VerbError(
            f"store {reader.path} has no observation of that time", "is the shadow running?"
        )
    if all(each.others is None for each in observations):
        raise VerbError(
            "the overlay does not list drones of other systems", "there is nothing to compare with"
        )
    completed = reader.completions(observations[0].at, now())
    return comparison_document(compare(views, observations, completed, boot_s, cycle_s))


def comparison_document(found: Comparison) -> Document:
    rows = []
    for site in sorted({*found.theirs, *found.ours}):
        theirs = found.theirs.get(site, GpuUse())
        ours = found.ours.get(site, GpuUse())
        their_waits, our_waits = (None, None) if site else (found.their_waits, found.our_waits)
        rows.append(SystemUse("other", site, theirs, their_waits))
        rows.append(SystemUse("ours", site, ours, our_waits, found.saved_s(theirs, ours)))
    uses = Listing("", USE_COLUMNS, rows, title="GPU-hours of both systems, in all and by site")
    return Document(SHADOW_SCHEMA, SHADOW_FACTS, found, {"uses": uses}, main="uses")
