"""Rules on the jobs that a drone takes beyond its type. Standard library only, for drones too.

A rule is decided when the drone is ordered (:mod:`provisioner.planner.placement`). A new one is a
field of :class:`JobFilter`, a line in :meth:`JobFilter.refuses` and a sentence in
:data:`FILTER_WORDS`. The drone script (``condor_drone.sh``) reads it as a variable. Two more places
name the fields of a request that the rules judge (:class:`FilteredJob`): the embedded queue and
:attr:`provisioner.planner.retirement.Retirement._lacking_room`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from typing import Protocol

from provisioner.values import frozen

FIRST_JOBS_S = 90
"""Time for which a new drone takes only jobs as large as those that it was started for: HTCondor's
default negotiation cycle (60 s) and some."""
FIRST_JOBS = "first_jobs"
FILTER_WORDS = {
    "excluded_users": "this user would lose more work to the owner of the site than a wait costs",
    "min_gpus": "it is for jobs of several GPUs",
    FIRST_JOBS: "it is new and reserved for the jobs that it was started for",
}
"""Rules by which a drone refuses jobs."""
_GPU_MILLI = 1000


class FilteredJob(Protocol):
    """Part of a job's request that the rules judge."""

    @property
    def owner(self) -> str: ...
    @property
    def gpu_milli(self) -> int: ...
    @property
    def vram_mib(self) -> int: ...


@frozen
class JobFilter:
    """Rules on the jobs that a drone takes. As text: ``excluded_users=anna,ben min_gpus=2``, empty for all jobs."""

    excluded_users: tuple[str, ...] = ()
    """Users whose jobs it refuses, as an owner is likely to preempt them; letters, digits and ``._@-``."""
    min_gpus: int = 0
    """It refuses jobs that request fewer GPUs: one of them would keep all its other GPUs from larger jobs."""
    first_s: int = 0
    """Time in the pool for which the next two hold, unless its first jobs have ended before."""
    first_gpus: int = 0
    """It refuses jobs that request fewer GPUs."""
    first_vram_mib: int = 0
    """It refuses jobs that need less VRAM per GPU."""

    def refuses(self, job: FilteredJob, *, at_first: bool = False) -> str:
        """Return the rule by which it refuses a job, empty if none. ``at_first``: its first jobs may still come."""
        if job.gpu_milli < self.min_gpus * _GPU_MILLI:
            return "min_gpus"
        if job.owner in self.excluded_users:
            return "excluded_users"
        if at_first:
            too_small = job.gpu_milli < self.first_gpus * _GPU_MILLI
            return FIRST_JOBS if too_small or job.vram_mib < self.first_vram_mib else ""
        return ""

    @property
    def lasting(self) -> JobFilter:
        """Return the rules that hold for as long as the drone lives."""
        return replace(self, first_s=0, first_gpus=0, first_vram_mib=0) if self.first_s else self

    @lru_cache(maxsize=1024)  # noqa: B019 (drones of a few classes have few filters)
    def __str__(self) -> str:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["excluded_users"] = ",".join(self.excluded_users)
        return " ".join(f"{name}={value}" for name, value in values.items() if value)

    @classmethod
    @lru_cache(maxsize=1024)  # drones of a few classes have few filters
    def parse(cls, text: str) -> JobFilter:
        """Return the rules of a text. Raises ValueError or TypeError if it is none."""
        rules = dict(rule.split("=") for rule in text.split())
        users = rules.pop("excluded_users", "")
        numbers = {name: int(value) for name, value in rules.items()}
        return cls(tuple(filter(None, users.split(","))), **numbers)


TAKES_ALL = JobFilter()
