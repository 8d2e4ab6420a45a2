"""``provisioner shadow``: what a shadow has seen of another system, beside what a controller would have done."""

from __future__ import annotations

from typing import Annotated

from provisioner.answers.columns import now
from provisioner.answers.errors import parsed
from provisioner.answers.query import Query
from provisioner.cli import options as opt, output as out

shadow_app = opt.verbs(no_args_is_help=True)


@shadow_app.callback()
def shadow() -> None:
    """Compare another system with a controller in shadow mode."""


@shadow_app.command("report")
@opt.shared
def report(
    query: Query,
    host: opt.Host,
    since: Annotated[str, opt.option("AGE", "Length of the period: 12h, 3d, 4w.")] = "7d",
    boot: Annotated[
        str, opt.option("TIME", "Assumed time from the start of a drone at a site to the pool.")
    ] = "3min",
    negotiation: Annotated[
        str, opt.option("TIME", "Assumed interval of the pool's negotiation.")
    ] = "60s",
) -> None:
    """Compare GPU-hours, waits and drones of the other system and of a controller, by site.

    The figures of the other system are observed, those of the controller predicted: the jobs submitted and completed
    in the period are replayed with the real planner on the GPUs that were free or held by the other system. The report
    lists its assumptions.

    \b
    Examples:
      provisioner shadow report --since 3d
      provisioner shadow report --boot 8min -o json | jq .saved_gpu_s
    """
    from provisioner.answers.shadow import shadow_document
    from provisioner.durations import parse_duration

    age_s = parsed(parse_duration, "--since", since)
    boot_s = parsed(parse_duration, "--boot", boot)
    cycle_s = parsed(parse_duration, "--negotiation", negotiation)
    reader = opt.open_record(host)
    out.present(
        query, host, lambda: shadow_document(reader, now() - age_s, boot_s, cycle_s), reader.now
    )
