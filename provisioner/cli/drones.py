"""``provisioner drones``: list them, tell the life of one, ask some to leave."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner import formatting
from provisioner.cli import complete
from provisioner.cli.cells import words
from provisioner.cli.drone_list import Which, list_drones
from provisioner.cli.drone_rows import HISTORY_SCHEMA, Step, history_columns, steps
from provisioner.cli.exits import Failure
from provisioner.cli.listing import Document, Listing
from provisioner.cli.options import Pick, Show, Where, nothing_before, shared
from provisioner.cli.output import present
from provisioner.cli.resolve import the_drone
from provisioner.cli.where import open_record
from provisioner.model import DrainMode, Drone, DroneState
from provisioner.store import Reader

if TYPE_CHECKING:
    from provisioner.planner.retirement import IdleLimit

app = typer.Typer(cls=complete.Hints, add_completion=False, rich_markup_mode=None)

Sites = Annotated[
    list[str] | None,
    typer.Option("--site", metavar="NAME", help="Only of this site; repeatable.", autocompletion=complete.sites),
]
States = Annotated[
    list[DroneState] | None,
    typer.Option(
        "--state", metavar="STATE", help="Only in this state; repeatable. Ends imply --ended.", case_sensitive=False
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type", metavar="SITE/NAME", help="Only of this drone type; repeatable.", autocompletion=complete.types
    ),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="NAME",
        help="Only on this node, by its whole name or the part before the first dot; repeatable.",
    ),
]


@app.callback(invoke_without_command=True)
@shared
def drones(
    ctx: typer.Context,
    where: Where,
    show: Show,
    pick: Pick,
    site: Sites = None,
    state: States = None,
    type_: Types = None,
    node: Nodes = None,
    ended: Annotated[bool, typer.Option("--ended", help="Only those that have ended.")] = False,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Live and ended ones.")] = False,
) -> None:
    """List drones; show, drain or kill some.

    Without options those that live, oldest first. The record is read, nobody is asked: it answers while the
    controller is down. Every id that another verb takes may be a drone's id, its last number, the site's id, the
    name of its slot in the pool or of its place at the site. Where a drone runs (node, and both slots) is in the table
    as far as that has room, and always in -o wide and -o json.

    \b
    Examples:
      provisioner drones
      provisioner drones --site local --state busy --sort -age_s
      provisioner drones --node topas-a100-1 -o wide
      provisioner drones --ended --columns id,state,reason --limit 20
      provisioner drones -o json | jq '.items[] | select(.state == "idle") | .id'
    """
    if ctx.invoked_subcommand is not None:
        nothing_before(ctx)
        return
    list_drones(where, show, pick, Which(ended, all_, site or (), state or (), type_ or (), node or ()))


# ---------------------------------------------------------------------------------------------------------------- show


@app.command("show")
@shared
def show_drone(
    where: Where,
    show: Show,
    any_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Drone id, its number, the site's id, or a slot name.",
            autocompletion=complete.any_drones,
        ),
    ],
) -> None:
    """Tell the whole life of one drone: every step with time, duration and reason.

    \b
    Examples:
      provisioner drones show kit-x7q2-17
      provisioner drones show slot1@gpu07.example.org
      provisioner drones show 17 -o json
    """
    reader = open_record(where)
    present(show, lambda: life(reader, the_drone(reader, any_id)))


def life(reader: Reader, drone_id: str) -> Document:
    """The document of ``drones show``."""
    from provisioner.model import DroneId

    drone = reader.drone(DroneId(drone_id))
    if drone is None:
        raise Failure(f"drone {drone_id} is no longer on record")
    idle = _idle_limit(drone, reader)
    return life_of(drone, steps(reader.history(drone.id)), time.time(), reader.last_words(drone.id), idle)


def _idle_limit(drone: Drone, reader: Reader) -> IdleLimit | None:
    """Return how long a drone that is idle may be so, by the newest tick."""
    from provisioner.planner.retirement import idle_limit

    views = reader.views() if drone.state is DroneState.IDLE else None
    return idle_limit(drone, views.policy, views.estimates) if views is not None else None


def life_of(
    drone: Drone, life_steps: list[Step], now: float, last_words: str = "", idle: IdleLimit | None = None
) -> Document:
    """Return one drone and its steps as a document, with what it said last, and how long it may be idle."""
    from provisioner.cli.drone_facts import facts

    return Document(
        "provisioner.drone/1",
        Listing("", facts(now, *idle) if idle else facts(now), [drone], lambda d: d.id),
        {
            "history": Listing(HISTORY_SCHEMA, history_columns(now), life_steps, lambda s: s[0].drone_id),
            "last_words": Listing("", _SAID, last_words.splitlines(), str),
        },
        {"history": "Life"} | ({"last_words": "What it said last"} if last_words else {}),
        scope=f"{formatting.count(len(life_steps), 'step')} on record",
    )


_SAID = (words("line", str, "A line of what it said last, where its site tells: a console's end.", least=40),)


# ------------------------------------------------------------------------------------------------------- drain and kill

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="Drone ids, their numbers, sites' ids or slot names.",
        show_default=False,
        autocompletion=complete.drones,
    ),
]
Reason = Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; it is recorded with every step.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say which drones are meant.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when all of them have ended.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0, help="With --wait: give up after this; exit 124.")
]


@app.command("drain")
@shared
def drain(
    where: Where,
    reason: Reason,
    ids: Ids = None,
    mode: Annotated[
        DrainMode,
        typer.Option(
            "--mode",
            help="none: let it run out; peaceful: no new jobs; graceful: running ones are asked to "
            "leave; fast: running ones are killed; resume: back into service.",
        ),
    ] = DrainMode.PEACEFUL,
    site: Sites = None,
    state: States = None,
    type_: Types = None,
    node: Nodes = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    wait: Wait = False,
    timeout: Timeout = 600.0,
) -> None:
    """Ask drones to leave the pool. It is recorded now and carried out at the controller's next tick.

    \b
    Examples:
      provisioner drones drain kit-x7q2-17 --reason "node needs a new fan"
      provisioner drones drain --site local --state idle --reason "downtime" --yes
      provisioner drones drain --node topas-a100-1 --reason "kernel update" --yes --wait --timeout 3600
      provisioner drones drain 17 18 19 --mode fast --reason "hung jobs" --wait --timeout 120
    """
    from provisioner.cli.ask import Demand, ask
    from provisioner.model import RequestKind

    demand = Demand(
        RequestKind.DRAIN,
        mode,
        reason,
        tuple(ids or ()),
        tuple(site or ()),
        tuple(state or ()),
        tuple(type_ or ()),
        tuple(node or ()),
    )
    ask(open_record(where), demand, yes=yes, dry_run=dry_run, timeout_s=timeout if wait else None)


@app.command("kill")
@shared
def kill(
    where: Where,
    reason: Reason,
    ids: Ids = None,
    site: Sites = None,
    state: States = None,
    type_: Types = None,
    node: Nodes = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    wait: Wait = False,
    timeout: Timeout = 600.0,
) -> None:
    """End drones at their sites without waiting for their jobs. Carried out at the controller's next tick.

    \b
    Examples:
      provisioner drones kill kit-x7q2-17 --reason "GPU fell off the bus"
      provisioner drones kill --type horeka/h100 --reason "wrong image" --dry-run
      provisioner drones kill 17 18 --reason "runaway" --yes --wait
    """
    from provisioner.cli.ask import Demand, ask
    from provisioner.model import RequestKind

    demand = Demand(
        RequestKind.KILL,
        DrainMode.PEACEFUL,
        reason,
        tuple(ids or ()),
        tuple(site or ()),
        tuple(state or ()),
        tuple(type_ or ()),
        tuple(node or ()),
    )
    ask(open_record(where), demand, yes=yes, dry_run=dry_run, timeout_s=timeout if wait else None)
