"""The answer of ``provisioner drones``: which drones are meant, and the list of them with its line of scope."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from provisioner import formatting
from provisioner.cli.drone_rows import SCHEMA, columns
from provisioner.cli.forms import Pick, Show, Where
from provisioner.cli.listing import Listing
from provisioner.cli.output import picked, present
from provisioner.cli.resolve import known_sites
from provisioner.cli.where import open_record
from provisioner.model import Drone, DroneState
from provisioner.store import Reader


@dataclass(frozen=True, slots=True)
class Which:
    """The drones that are meant: those that pass every filter given."""

    ended: bool = False
    all_: bool = False
    sites: Sequence[str] = ()
    states: Sequence[DroneState] = ()
    types: Sequence[str] = ()
    nodes: Sequence[str] = ()

    @property
    def ends(self) -> bool | None:
        """True: only ended ones; False: only live ones; None: both. States say it by themselves."""
        kinds = {s.ended for s in self.states}
        if self.all_ or (self.ended and kinds == {False}) or kinds == {False, True}:
            return None
        return self.ended or kinds == {True}


def list_drones(where: Where, show: Show, pick: Pick, which: Which) -> None:
    """Show them, oldest first unless ``pick`` says otherwise."""
    reader = open_record(where)
    known_sites(reader, which.sites)
    wants_reason = "reason" in (show.columns or "").lower().split(",")
    present(show, lambda: picked(drone_listing(reader, which, time.time(), reasons=wants_reason), pick))


def drone_listing(reader: Reader, which: Which, now: float, *, reasons: bool = False) -> Listing[Drone]:
    """``reasons``: with the column of the reasons for their states, which takes a look-up per drone."""
    found = reader.drones(
        ended=which.ends, sites=which.sites, states=which.states, types=which.types, nodes=which.nodes
    )
    shown = columns(now, (lambda d: _why(reader, d)) if reasons else None)
    return Listing(SCHEMA, shown, found, lambda d: d.id, _scope(reader, found, which))


def _why(reader: Reader, drone: Drone) -> str:
    history = reader.history(drone.id)
    return formatting.describe(history[-1].reason) if history else ""


def _scope(reader: Reader, found: Sequence[Drone], which: Which) -> str:
    """One line that says what the list is of: a silent default would mislead."""
    kind = {False: "live drone", True: "ended drone", None: "drone"}[which.ends]
    of = f" of controller {controller(found[0].id)}" if found else ""
    only = [
        f"{name} {', '.join(values)}"
        for name, values in (
            ("site", which.sites),
            ("state", [s.value for s in which.states]),
            ("type", which.types),
            ("node", which.nodes),
        )
        if values
    ]
    more = {False: "--ended for past ones", True: "--all for live ones too", None: ""}[which.ends]
    runs = "" if reader.holder() else "no controller runs: as last recorded"
    return "; ".join(filter(None, (formatting.count(len(found), kind) + of, *only, more, runs)))


def controller(drone_id: str) -> str:
    """The controller's name within a drone id (``<controller>-<store birth>-<serial>``)."""
    return drone_id.rsplit("-", 2)[0]
