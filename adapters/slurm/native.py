"""A Slurm cluster by way of pyslurm, which blocks and may end its process, and therefore works in a child."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from adapters.slurm.records import Partition, Reservation, SlurmJob, SlurmNode, SlurmSubmission
from adapters.slurm.settings import SlurmSiteConfig
from provisioner.interfaces import OutcomeUnknownError, UnavailableError
from provisioner.model import FaultKind
from provisioner.worker_process import WorkerProcess

_SIDE = "adapters.slurm.native_side:NativeSide"
_NO_CONFIGURATION = re.compile(
    r"could not establish a configuration source|unable to process configuration file|fetch_config", re.IGNORECASE
)


class SlurmNativeClient:
    """The cluster that the slurm.conf of this host is of, as the account that this process runs as."""

    def __init__(self, config: SlurmSiteConfig, name: str) -> None:
        self._config, self._name = config, name
        self._children: dict[str, WorkerProcess] = {}
        """By what they are for: a slow submit does not hold up a look. Each is started when it is first needed."""
        self._entered = False

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._entered = False
        children, self._children = self._children, {}
        async with asyncio.TaskGroup() as group:
            for child in children.values():
                group.create_task(child.close())

    # ---------------------------------------------------------------------------------------------------- questions

    async def own_jobs(self) -> Sequence[SlurmJob]:
        return await self._listed("own_jobs")

    async def ended_jobs(self, remote_ids: Collection[str], since: float) -> Sequence[SlurmJob] | None:
        if self._config.accounting is False:
            return None
        answer = await self._asked("ended_jobs", tuple(remote_ids), since)
        assert answer is None or isinstance(answer, list)
        return answer

    async def active_jobs(self, partitions: Collection[str]) -> Sequence[SlurmJob]:
        return await self._listed("active_jobs", tuple(partitions))

    async def nodes(self) -> Sequence[SlurmNode]:
        return await self._listed("nodes")

    async def partitions(self) -> Sequence[Partition]:
        return await self._listed("partitions")

    async def reservations(self) -> Sequence[Reservation]:
        return await self._listed("reservations")

    def notices(self) -> Sequence[str]:
        return ()

    async def configuration(self) -> Mapping[str, str]:
        answer = await self._asked("configuration")
        assert isinstance(answer, dict)
        return answer

    async def _listed(self, question: str, *args: object) -> list[Any]:
        answer = await self._asked(question, *args)
        assert isinstance(answer, list)
        return answer

    async def _asked(self, question: str, *args: object) -> object:
        try:
            return await self._child("poll").call(question, *args, deadline_s=self._config.deadline)
        except UnavailableError as error:
            raise explained(error) from None

    def _child(self, purpose: str) -> WorkerProcess:
        if not self._entered:
            raise UnavailableError(f"site {self._name} is not connected")
        if purpose not in self._children:
            self._children[purpose] = WorkerProcess(_SIDE, python=self._config.native.python)
        return self._children[purpose]

    # -------------------------------------------------------------------------------------------------------- orders

    async def submit(self, submission: SlurmSubmission) -> int:
        child = await self._ready()
        try:
            answer = await child.call("submit", submission, deadline_s=self._config.submit_deadline)
        except UnavailableError as error:  # no answer, or no last words: nobody knows
            raise OutcomeUnknownError(f"submit: {error}") from None
        if isinstance(answer, str):
            raise UnavailableError(f"submit: {answer}")
        assert isinstance(answer, int)
        return answer

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        if not remote_ids:
            return
        child = await self._ready()
        try:
            await child.call("cancel", tuple(remote_ids), kill, deadline_s=self._config.deadline)
        except UnavailableError as error:
            raise OutcomeUnknownError(f"cancel: {error}") from None

    async def _ready(self) -> WorkerProcess:
        """The child for orders, started: what goes wrong before that has certainly not happened."""
        child = self._child("orders")
        try:
            await child.call("ready", deadline_s=self._config.deadline)
        except UnavailableError as error:
            raise explained(error) from None
        return child


def explained(error: UnavailableError) -> UnavailableError:
    """In words of ours, if it is that libslurm ended the child for want of a configuration."""
    if not _NO_CONFIGURATION.search(str(error)):
        return error
    message = "libslurm finds no slurm.conf that it can use on this host (SLURM_CONF, its place, or the network)"
    return UnavailableError(
        f"{message}: the native transport works on hosts of the cluster only. {error}", FaultKind.CONFIG
    )
