"""``provisioner shadow``: what a shadow has seen of another system, beside what a controller would have done."""

from __future__ import annotations

from typing import Annotated

from provisioner.answers.columns import now
from provisioner.answers.errors import parsed
from provisioner.answers.query import Query
from provisioner.answers.shadow import shadow_document
from provisioner.cli import options as opt, output as out

shadow_app = opt.verbs(no_args_is_help=True)


@shadow_app.callback()
def shadow() -> None:
    """Compare another system with what a controller would have done (`provisioner run --shadow`)."""


@shadow_app.command("report")
@opt.shared
def report(
    query: Query,
    host: opt.Host,
    since: Annotated[str, opt.option("AGE", "Go back this far: 12h, 3d, 4w.")] = "7d",
    boot: Annotated[
        str, opt.option("TIME", "From a place at a site to the pool, for our drones.")
    ] = "3min",
    negotiation: Annotated[str, opt.option("TIME", "Interval of the pool's negotiation.")] = "60s",
) -> None:
    """Report GPU-hours, waits and drones of the other system beside those of a controller, by site.

    Theirs are observed. Ours are predicted: the jobs that were submitted and completed meanwhile are replayed with
    the real planner, on the GPUs that were free or that the other system held. The report says what it assumes.

    \b
    Examples:
      provisioner shadow report --since 3d
      provisioner shadow report --boot 8min -o json | jq .saved_gpu_s
    """
    from provisioner.durations import parse_duration

    age_s = parsed(parse_duration, "--since", since)
    boot_s = parsed(parse_duration, "--boot", boot)
    cycle_s = parsed(parse_duration, "--negotiation", negotiation)
    reader = opt.open_record(host)
    out.present(
        query, host, lambda: shadow_document(reader, now() - age_s, boot_s, cycle_s), reader.now
    )
