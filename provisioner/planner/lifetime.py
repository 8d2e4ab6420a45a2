"""How long a drone that is started now can live: as long as its type says, and not into its site's downtime."""

from __future__ import annotations

from provisioner.model import DroneType
from provisioner.planner.scene import Scene
from provisioner.reasons import Downtime

ENDLESS = float("inf")
DOWNTIME_MARGIN_S = 300.0
"""It is gone by so much before the downtime: it may wait a little before it starts."""
LEAST_LIFE_S = 1800.0
"""Worth a start; for types that never live so long, their own walltime."""


def downtime_at(scene: Scene, site: str) -> float:
    """Start of the site's next downtime by its newest view, however old; endless if none is known."""
    reading = scene.snapshot.sites.get(site)
    at = reading.view.downtime_at if reading is not None and reading.view is not None else 0.0
    return at if at > scene.now else ENDLESS


def ends_at(scene: Scene, kind: DroneType) -> float:
    """When a drone of the type, started now, has to be gone."""
    own = scene.now + kind.walltime_s if kind.walltime_s else ENDLESS
    return min(own, downtime_at(scene, kind.site) - DOWNTIME_MARGIN_S)


def cut_s(scene: Scene, kind: DroneType) -> float:
    """How long it may live if that is less than its type says, in whole seconds; 0 if it is not less."""
    left_s = ends_at(scene, kind) - scene.now
    return float(int(left_s)) if left_s < (kind.walltime_s or ENDLESS) else 0.0


def too_short(scene: Scene, kind: DroneType, wanted_s: float = 0.0) -> Downtime | None:
    """Why none is started for jobs that need ``wanted_s``: because of a downtime, if of one at all."""
    left_s = ends_at(scene, kind) - scene.now
    least_s = max(wanted_s, min(LEAST_LIFE_S, kind.walltime_s or LEAST_LIFE_S))
    if left_s >= least_s or (kind.walltime_s and wanted_s > kind.walltime_s):
        return None
    return Downtime(kind.site, downtime_at(scene, kind.site), max(0.0, left_s), least_s)
