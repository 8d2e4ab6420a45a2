"""The JSON Schemas of everything that ``-o json`` writes, by name and version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from provisioner.cli.listing import Document, Listing, json_schema
from provisioner.cli.site_rows import SiteRow
from provisioner.model import Breaker, Drone, DroneId, DroneState, JobClass, Plan, Policy, PolledOverlay, TypeKey
from provisioner.simulator.traces import Trace
from provisioner.store import Event, Hazard, Holder, Transition, Views

if TYPE_CHECKING:
    from provisioner.store import Reader

FILE = "docs/reference/cli-schemas.json"


def output_schemas() -> dict[str, dict[str, Any]]:
    """Schema name (``provisioner.drones/1``) to JSON Schema."""
    return {answer.schema: json_schema(answer) for answer in _answers()}


def schemas_text() -> str:
    """All of them, as kept in :data:`FILE`."""
    return json.dumps(output_schemas(), indent=1) + "\n"


def _answers() -> list[Listing[Any] | Document]:
    """Each kind of answer, from a record with next to nothing in it: a schema does not depend on the rows."""
    from provisioner.cli import (
        check,
        class_rows,
        drone_rows,
        drones,
        events,
        import_tardis,
        queue_rows,
        simulate_rows,
        site_rows,
        site_show,
        snapshot,
        status,
    )
    from provisioner.cli.estimate_rows import Known, learned_document
    from provisioner.cli.explain_class import explained_class
    from provisioner.cli.explain_drone import explained_drone
    from provisioner.cli.explain_job import KnownJob, job_document
    from provisioner.cli.plan_diff import plan_diff_document
    from provisioner.cli.plan_rows import plan_document

    reader = cast("Reader", _AlmostNothing())

    def blank(schema: str, columns: tuple[Any, ...]) -> Listing[Any]:
        return Listing(schema, columns, (), str)

    return [
        status.status_document(reader, 2.0),
        blank(drone_rows.SCHEMA, drone_rows.columns(0.0)),
        drones.life_of(_DRONE, [], 2.0),
        blank(site_rows.SCHEMA, site_rows.columns(0.0)),
        site_show.site_document(_SITE, None, (), (), 0.0, 2.0),
        blank(class_rows.SCHEMA, class_rows.columns(0.0)),
        explained_class(reader, _VIEWS, JobClass("1", 1000, 1, 1), "", 2.0),
        explained_drone(reader, _DRONE.id, 2.0),
        job_document(KnownJob("1.0", "running", "")),
        plan_document(Plan(1, 1.0), ""),
        plan_diff_document(Plan(1, 1.0), Plan(1, 1.0), ""),
        blank(events.SCHEMA, events.columns()),
        blank(snapshot.SCHEMA, snapshot.columns()),
        blank(check.SCHEMA, check.columns()),
        blank(check.LIVE_SCHEMA, check.look_columns()),
        blank(queue_rows.SCHEMA, queue_rows.columns(0.0)),
        blank(import_tardis.SCHEMA, import_tardis.columns()),
        learned_document(Known(None, None), 2.0),
        simulate_rows.simulation(Trace("", ()), (), {}),
    ]


_DRONE = Drone(DroneId("a-b-1"), TypeKey("s/t"), DroneState.IDLE, 1.0, 1.0, 1000)
_SITE = SiteRow("s", None, None, Breaker("s"), (), {}, 0)
_VIEWS = Views(1, 1.0, Policy(), (), PolledOverlay(), {})


class _AlmostNothing:
    """The part of a Reader that the documents ask, with one drone on record."""

    def holder(self) -> Holder | None:
        return None

    def views(self) -> Views | None:
        return None

    def breakers(self) -> Mapping[str, Breaker]:
        return {}

    def drones(self, **which: object) -> list[Drone]:
        return []

    def hazards(self, since: float, now: float) -> list[Hazard]:
        return []

    def drone(self, drone_id: DroneId) -> Drone | None:
        return _DRONE

    def history(self, drone_id: DroneId) -> list[Transition]:
        return []

    def plans(self, *, limit: int) -> list[Plan]:
        return []

    def events(self, *, after: int, limit: int) -> list[Event]:
        return []
