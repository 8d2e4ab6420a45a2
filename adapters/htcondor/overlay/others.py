"""Drones of other systems by startd ads: TARDIS, glideinWMS, other controllers of ours."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from adapters.htcondor import classads, htcondor2
from adapters.htcondor.classads import Ad, moment, text, value, whole
from adapters.htcondor.daemons import Collectors
from adapters.htcondor.overlay.slots import is_claimed
from adapters.htcondor.overlay.work import MAX_DEVICES_PER_JOB
from provisioner.model import WHOLE_GPU, OtherDrones

PROJECTION = classads.attribute_names(
    """
    Name SlotType State Activity TotalSlotGPUs GPUs GPUs_DeviceName DaemonStartTime DroneId SiteName TardisDroneUuid
    GLIDEIN_Site
    """
)
_Group = tuple[str, str]  # site and GPU model
# a drone that is missing for less (a collector restarts) has not joined anew
_REMEMBERED_S = 3600.0


def constraint(controller: str) -> str:
    """Return the constraint for slots with GPUs of drones that are not of ``controller``. Huge texts are left out."""
    marks = f'TardisDroneUuid isnt undefined || GLIDEIN_Site isnt undefined || !regexp("^{controller}-", DroneId)'
    sizes = " && ".join(
        f"(size({name}) <= 1000) isnt false" for name in ("Name", "SiteName", "GPUs_DeviceName")
    )
    return f'SlotType isnt "Dynamic" && TotalSlotGPUs > 0 && ({marks}) is true && {sizes}'


class OtherDroneReader:
    """Server of ``drones`` in a worker process. It remembers which drones it has listed."""

    def __init__(self, collector: str, controller: str) -> None:
        self._collector = Collectors(collector)
        self._controller = controller
        self._known: dict[str, float] | None = None
        self._joined = Counter[_Group]()

    def drones(self) -> Sequence[OtherDrones]:
        """Return the drones of others by site and GPU model. Each start of a startd is a drone."""
        gpus = Counter[_Group]()
        busy = Counter[_Group]()
        names = defaultdict[_Group, set[str]](set)
        for ad in self._collector.query(
            htcondor2.AdType.Startd, constraint(self._controller), PROJECTION
        ):
            group = site_of(ad), text(ad, "GPUs_DeviceName", 80)
            there = min(whole(ad, "TotalSlotGPUs"), MAX_DEVICES_PER_JOB)
            free = min(whole(ad, "GPUs"), there)
            if value(ad, "SlotType") != "Partitionable":
                free = 0 if is_claimed(ad) else there
            gpus[group] += there
            busy[group] += there - free
            names[group].add(
                f"{text(ad, 'Name', 600).partition('@')[2]} {moment(ad, 'DaemonStartTime'):.0f}"
            )
        now = time.monotonic()
        for group, those in names.items():
            self._joined[group] += 0 if self._known is None else len(those - self._known.keys())
        kept = {name: at for name, at in (self._known or {}).items() if now - at <= _REMEMBERED_S}
        self._known = kept | dict.fromkeys(set().union(*names.values()), now)
        return [
            OtherDrones(
                *group, len(names[group]), gpus[group] * WHOLE_GPU, busy[group] * WHOLE_GPU, joined
            )
            for group, joined in sorted(self._joined.items())
        ]


def site_of(ad: Ad) -> str:
    """Return the site of a drone. TARDIS calls a drone by its site and ten characters."""
    tardis = text(ad, "TardisDroneUuid", 200).rpartition("-")[0]
    return text(ad, "SiteName", 63) or tardis or text(ad, "GLIDEIN_Site", 63)
