"""Refusals: idle drones that do not take waiting jobs although their type fits, and when that ends.

A drone in front of an owner avoids users, one for large jobs takes no smaller ones, and a new one
is kept for the jobs that it was started for. All of that is decided when it is ordered. The reason
is given beside the one that counts the jobs, which names a limit or a full site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from provisioner.model import WHOLE_GPU, Drone, DroneState, JobClass, TypeKey
from provisioner.planner.context import NO_END, PlanningContext
from provisioner.planner.demand import is_headroom
from provisioner.planner.matching import CompatibleTypes, is_refused
from provisioner.planner.states import idle_limit
from provisioner.reasons import IdleDroneRefuses

KEEP_FOR_JOBS_S = 90.0
"""Time for which a new drone takes only jobs as large as those that it was started for: HTCondor's
default negotiation cycle (60 s) and some."""

IdleKind = tuple[TypeKey, str, int, str]


@dataclass
class IdleDrones:
    """Idle drones of one plan by what they refuse."""

    context: PlanningContext

    @cached_property
    def _alike(self) -> Mapping[IdleKind, list[Drone]]:
        """Drones that refuse the same jobs, by type, settings, and the class that they are kept for."""
        found: dict[IdleKind, list[Drone]] = {}
        for drone in self.context.drones.values():
            if (
                drone.state is DroneState.IDLE
                and drone.id in self.context.slots
                and not drone.is_leaving
            ):
                is_new = (
                    not drone.jobs_started and self.context.now < drone.joined_at + KEEP_FOR_JOBS_S
                )
                kept_for = drone.for_class if is_new and not is_headroom(drone.for_class) else ""
                found.setdefault((drone.type, drone.avoids, drone.min_gpus, kept_for), []).append(
                    drone
                )
        return found

    @cached_property
    def _classes(self) -> Mapping[str, JobClass]:
        return {job.id: job for job in self.context.classes}

    def refusing(self, job: JobClass, compatible: CompatibleTypes) -> Iterator[IdleDroneRefuses]:
        """Yield one reason for each rule by which idle drones of fitting types refuse the jobs of a class."""
        found: dict[str, list[Drone]] = {}
        for (key, *_, kept_for), drones in self._alike.items():
            if key in compatible.jobs and (rule := self._rule(job, drones, kept_for)):
                found.setdefault(rule, []).extend(drones)
        for rule, drones in found.items():
            drone = drones[0]
            until = drone.joined_at + KEEP_FOR_JOBS_S
            if rule != "kept":
                limit_s = idle_limit(
                    drone, self.context.snapshot.policy, self.context.snapshot.estimates
                ).limit_s
                until = (drone.idle_at or drone.since) + limit_s
            yield IdleDroneRefuses(drone.id, drone.type, rule, len(drones), until)

    def _rule(self, job: JobClass, drones: Sequence[Drone], kept_for: str) -> str:
        """Return the setting by which drones refuse jobs; empty if one takes them."""
        if is_refused(job, drones[0]):
            return "min_gpus" if job.gpu_milli < drones[0].min_gpus * WHOLE_GPU else "avoids"
        end_s, slots = self.context.now + job.walltime_s, self.context.slots
        if job.walltime_s and all(
            end_s > (slots[drone.id].retires_at or NO_END) for drone in drones
        ):
            return "ends"
        larger = self._classes.get(kept_for)
        if larger is None:  # what jobs requested that have gone is not on record
            return "kept" if kept_for else ""
        is_larger = larger.vram_mib > job.vram_mib or larger.gpu_milli > max(
            WHOLE_GPU, job.gpu_milli
        )
        return "kept" if is_larger else ""
