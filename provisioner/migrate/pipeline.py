"""COBalD's pipeline: what steered TARDIS from outside, and what does its work here."""

from __future__ import annotations

from math import inf

from provisioner.migrate.controller import FILE
from provisioner.migrate.executors import kind_of
from provisioner.migrate.findings import Notes
from provisioner.migrate.section import Section
from provisioner.migrate.told import Told

_STEERING = (
    "drones are not scaled up and down by utilisation and allocation: each waiting job that no drone can take asks for"
    " one that fits, and idle drones leave after `policy.idle_timeout`. How fast: `limits.max_pending` and"
    " `limits.max_starts_per_tick` of each site"
)
_STEPS = {
    "LinearController": _STEERING,
    "RelativeSupplyController": _STEERING,
    "Stepwise": _STEERING,
    "UnboundStepwise": _STEERING,
    "DemandSwitch": _STEERING,
    "Logger": "every action is recorded with its reason: `provisioner events` and `provisioner plan`",
    "Buffer": "demand is not smoothed: nothing is started twice for one job, and `policy.idle_timeout` keeps drones",
}
_POOLS = {"TardisPoolFactory", "create_composite_pool"}


def tardis_file(pipeline: Told | None) -> str:
    """The file that a step of ``pipeline`` names as TARDIS's configuration; empty if none does."""
    for step in pipeline.items if pipeline is not None else []:
        named = step.value.get("configuration") if isinstance(step.value, dict) else None
        if named is not None and named.text:
            return named.text
    return ""


class Pipeline:
    """``pipeline`` of a COBalD configuration."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.cores: tuple[float, int, str] | None = None
        """Most cores at all sites together, with line and key of who says so."""

    def read(self, root: Section) -> None:
        told = root.take("pipeline")
        for n, step in enumerate(told.items if told is not None else []):
            self._step(step, f"pipeline[{n}]")
        root.drop(
            {
                "logging": "the controller logs to standard error; systemd keeps it",
                "__config_test": "a test of COBalD",
            }
        )
        for key, service in root.left():
            if service.tag.removeprefix("!").removeprefix("Tardis") in ("RestApi", "RestService"):
                self.notes.dropped(service.line, key, "no REST here yet: `provisioner drones -o json` has what it gave")
            else:
                self.notes.dropped(service.line, key, "a section of COBalD or of a plugin: nothing here reads it")

    def _step(self, step: Told, path: str) -> None:
        kind = kind_of(step)
        key = f"{path} {step.tag or ''}".strip()
        if kind in _POOLS or kind == "PoolFactory":
            self.notes.converted(step.line, key, FILE, "the sites themselves")
        elif kind in ("Limiter", "Standardiser"):
            self._limits(Section(Told(step.value, step.line), path, self.notes), step.line, key)
        else:
            self.notes.dropped(step.line, key, _STEPS.get(kind, "a step of COBalD that nothing here does"))

    def _limits(self, given: Section, line: int, key: str) -> None:
        most = given.take("maximum")
        cores = most.number if most is not None else None
        if most is not None and cores is not None and 0 < cores < (self.cores[0] if self.cores else inf):
            self.cores = (cores, most.line, given.name("maximum"))
        elif most is not None and (cores is None or cores <= 0):
            self.notes.dropped(most.line, given.name("maximum"), "no number of cores: write `policy.max_drones`")
        given.drop(
            {
                "minimum": "there is no minimum: nothing is started for which no job waits",
                "granularity": "drones are whole anyway",
                "backlog": "`limits.max_pending` of each site says how many may be on their way",
                "surplus": "idle drones leave after `policy.idle_timeout`",
            }
        )
        given.drop_rest("unknown to COBalD")
        self.notes.converted(line, key, "", "told key by key")
