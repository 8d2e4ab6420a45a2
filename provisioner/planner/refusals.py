"""Refusals: idle drones that do not take waiting jobs although their type fits, and when that ends.

The rules are those of its filter (:mod:`provisioner.job_filter`), and its end. The reason is given
beside the one that counts the jobs, which names a limit or a full site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from provisioner.job_filter import FIRST_JOBS, TAKES_ALL, JobFilter
from provisioner.model import Drone, DroneState, JobClass, TypeKey
from provisioner.planner.context import PlanningContext
from provisioner.planner.matching import CompatibleTypes
from provisioner.planner.states import NO_END, idle_limit
from provisioner.reasons import IdleDroneRefuses

IdleKind = tuple[TypeKey, JobFilter]


@dataclass
class IdleDrones:
    """Idle drones of one plan by what they refuse."""

    context: PlanningContext

    @cached_property
    def _alike(self) -> Mapping[IdleKind, list[Drone]]:
        """Drones that refuse the same jobs, by type and the rules that hold for them now."""
        found: dict[IdleKind, list[Drone]] = {}
        for drone in self.context.unsettled:
            if (
                drone.state is DroneState.IDLE
                and drone.id in self.context.slots
                and not drone.is_leaving
            ):
                rules = drone.job_filter
                if drone.jobs_started or self.context.now >= drone.joined_at + rules.first_s:
                    rules = rules.lasting
                found.setdefault((drone.type, rules), []).append(drone)
        return found

    @cached_property
    def _with_rules(self) -> Mapping[IdleKind, list[Drone]]:
        return {kind: drones for kind, drones in self._alike.items() if kind[1] != TAKES_ALL}

    def refusing(self, job: JobClass, compatible: CompatibleTypes) -> Iterator[IdleDroneRefuses]:
        """Yield one reason for each rule by which idle drones of fitting types refuse the jobs of a class."""
        found: dict[str, list[Drone]] = {}
        # without rules they refuse only what outlives them
        kinds = self._alike if job.walltime_s else self._with_rules
        for (key, rules), drones in kinds.items():
            if key in compatible.jobs and (rule := self._rule(job, drones, rules)):
                found.setdefault(rule, []).extend(drones)
        for rule, drones in found.items():
            drone = drones[0]
            until = drone.joined_at + drone.job_filter.first_s
            if rule != FIRST_JOBS:
                limit_s = idle_limit(
                    drone, self.context.snapshot.policy, self.context.snapshot.estimates
                ).limit_s
                until = (drone.idle_at or drone.since) + limit_s
            yield IdleDroneRefuses(drone.id, drone.type, rule, len(drones), until)

    def _rule(self, job: JobClass, drones: Sequence[Drone], rules: JobFilter) -> str:
        """Return the rule by which drones refuse jobs; empty if one takes them."""
        if rule := rules.refuses(job):
            return rule
        end_s = self.context.now + job.walltime_s
        slots = self.context.slots
        if job.walltime_s and all(
            end_s > (slots[drone.id].retires_at or NO_END) for drone in drones
        ):
            return "ends"
        return rules.refuses(job, at_first=True)
