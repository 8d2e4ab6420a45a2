"""Ask drones to leave: select them, confirm, record the request, and wait for it if told to."""

from __future__ import annotations

import getpass
import os
import sys
import time
from dataclasses import dataclass

import typer

from provisioner import formatting
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.output import note
from provisioner.cli.resolve import known_sites, named, the_drone
from provisioner.model import DrainMode, DroneId, DroneState, RequestKind
from provisioner.store import Reader

POLL_S = 0.5
MANY = 2
"""From this many drones on a person is asked to confirm."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What an operator wants of which drones: named ones, or all live ones that pass every filter given."""

    kind: RequestKind
    mode: DrainMode
    reason: str
    ids: tuple[str, ...]
    sites: tuple[str, ...]
    states: tuple[DroneState, ...]
    types: tuple[str, ...]
    nodes: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        return (
            "kill"
            if self.kind is RequestKind.KILL
            else f"drain ({self.mode.value}: {formatting.mode_words(self.mode)})"
        )


def ask(reader: Reader, demand: Demand, *, yes: bool, dry_run: bool, timeout_s: float | None) -> None:
    """Carry ``demand`` to the record. Leaves by ``typer.Exit`` with :attr:`Exit.PARTIAL` if only some ids are known."""
    if not demand.reason.strip():
        raise Failure("--reason must not be empty: it is recorded with every step", code=Exit.USAGE)
    chosen, gone, complaints = _select(reader, demand)
    if gone:
        note(f"already ended, nothing to do: {named(gone)}")
    note(*complaints)
    if not chosen:
        if complaints:
            raise Failure("nothing was asked for")
        note("no live drone is meant: nothing was asked for")
        return
    if dry_run:
        note(f"would {demand.verb} {formatting.count(len(chosen), 'drone')}:")
        print("\n".join(chosen))
    else:
        _confirm(demand, chosen, yes)
        _record(reader, demand, chosen)
        if timeout_s is not None:
            _wait(reader, chosen, timeout_s)
    if complaints:
        raise typer.Exit(Exit.PARTIAL)


def _select(reader: Reader, demand: Demand) -> tuple[list[DroneId], list[DroneId], list[str]]:
    """Live drones that are meant, ended ones among those named, and a line for each id that means none."""
    filters = demand.sites or demand.states or demand.types or demand.nodes
    if not demand.ids and not filters:
        raise Failure("which drones? Name them, or select with --site, --state, --type, --node", code=Exit.USAGE)
    if demand.ids and filters:
        raise Failure("name drones or select them with filters, not both", code=Exit.USAGE)
    if not demand.ids:
        known_sites(reader, demand.sites)
        live = reader.drones(
            ended=False, sites=demand.sites, states=demand.states, types=demand.types, nodes=demand.nodes
        )
        return [d.id for d in live], [], []
    chosen: dict[DroneId, bool] = {}
    complaints: list[str] = []
    for any_id in demand.ids:
        try:
            drone_id = the_drone(reader, any_id)
        except Failure as unknown:
            complaints += unknown.lines
            continue
        drone = reader.drone(drone_id)
        chosen[drone_id] = drone is not None and not drone.state.ended
    return [i for i, live in chosen.items() if live], [i for i, live in chosen.items() if not live], complaints


def _confirm(demand: Demand, chosen: list[DroneId], yes: bool) -> None:
    if yes or len(chosen) < MANY:
        return
    question = f"{demand.verb} {formatting.count(len(chosen), 'drone')}: {named(chosen)}?"
    if not sys.stdin.isatty():
        raise Failure(question, "not a terminal to ask at: say --yes to do it", code=Exit.USAGE)
    if not typer.confirm(formatting.sanitize(question), err=True):
        raise Failure("nothing was asked for")


def _record(reader: Reader, demand: Demand, chosen: list[DroneId]) -> None:
    number = reader.ask(demand.kind, chosen, reason=demand.reason, by=operator(), at=time.time(), mode=demand.mode)
    note(f"request {number} recorded: {demand.verb} {formatting.count(len(chosen), 'drone')}")
    if reader.holder() is None:
        note("no controller runs: it will be carried out when one does")


def operator() -> str:
    """Who asks: the user, and behind `sudo` the one who called it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    behind = os.environ.get("SUDO_USER")
    return f"{behind} (as {name})" if behind and behind != name else name


def _wait(reader: Reader, chosen: list[DroneId], timeout_s: float) -> None:
    """Until all have ended, telling each end. Raises :class:`Failure` with :attr:`Exit.TIMED_OUT`."""
    deadline = time.monotonic() + timeout_s
    left = list(chosen)
    while True:
        still = []
        for drone_id in left:
            drone = reader.drone(drone_id)
            if drone is not None and not drone.state.ended:
                still.append(drone_id)
            else:
                note(f"{drone_id} {'is no longer on record' if drone is None else drone.state.value}")
        left = still
        if not left:
            return
        if time.monotonic() >= deadline:
            raise Failure(f"after {formatting.age(timeout_s)} not ended: {named(left)}", code=Exit.TIMED_OUT)
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
