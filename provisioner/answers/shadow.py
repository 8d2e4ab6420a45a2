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
    text("system", "The other system as observed, or ours as predicted.", level=0, choices=SYSTEMS),
    _gpu_s(
        "gpu_s",
        "GPU-seconds of drones: of others in the pool, of ours with boot.",
        "use.held_s",
        head="GPU-H",
    ),
    _gpu_s(
        "busy_gpu_s",
        "Of those, claimed by jobs; of ours, by runs that end well.",
        "use.busy_s",
        head="USED",
    ),
    _gpu_s(
        "idle_gpu_s",
        "The rest; of ours, boot, release and lost work too.",
        "use.idle_s",
        head="IDLE",
    ),
    whole("drones", "Drones of others that joined; of ours, that start.", "use.drones", level=0),
    _gpu_s(
        "saved_gpu_s",
        "Replayed part of others' idle, less our idle; null: others.",
        "saved_s",
        null=True,
        head="SAVED",
    ),
    whole("jobs", "Jobs done; null: of one site.", "waits.jobs", level=0, null=True),
    span_s(
        "wait_mean_s",
        "Mean wait: end, less submission and run time.",
        "waits.mean_s",
        head="MEAN WAIT",
    ),
    span_s("wait_p95_s", "95 of 100 waited no longer.", "waits.p95_s", head="P95 WAIT"),
)
SHADOW_FACTS = (
    time_at("since_at", "Begin of what was observed.", "since", head="from"),
    time_at("until_at", "Its end.", "until", head="until"),
    span_s("observed_s", "Of that, observed.", head="observed"),
    whole("jobs", "GPU jobs submitted and completed meanwhile.", "their_waits.jobs", head="jobs"),
    number(
        "replayed",
        "Part of others' used GPU time that is of them.",
        convert=rounded,
        head="replayed",
    ),
    _gpu_s(
        "saved_gpu_s",
        "That part of the idle GPU-seconds of others, less ours.",
        lambda found: found.saved_s(found.theirs[""], found.ours[""]),
        head="GPU-h saved",
    ),
    words("assumptions", "What the prediction takes for granted.", _assumptions, head="assumed"),
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
