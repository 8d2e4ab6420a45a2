"""A cluster by way of HTCondor's Python bindings, which block and therefore work in a child process."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from adapters.htcondor.site.cluster import Submission
from adapters.htcondor.site.owner_queue import Queue
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.shelves import Shelves
from adapters.shared.htcondor.ads import Ad
from adapters.shared.htcondor.client_directory import ClientDirectory
from provisioner.interfaces import OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import DroneId, FaultKind
from provisioner.worker_process import WorkerProcess

_SIDE = "adapters.htcondor.site.condor_side:CondorSide"
_COLLECT_S = 8.0


class BindingsCluster:
    """The schedd that the collector lists, over the network, as the owner of our token."""

    def __init__(self, config: HTCondorSiteConfig, name: str) -> None:
        self._config, self._name = config, name
        self._shelves = Shelves(config.work_directory.absolute() / name)
        self._directory: ClientDirectory | None = None
        self._children: dict[str, WorkerProcess] = {}
        """By what they are for; each is started when it is first needed."""

    async def __aenter__(self) -> Self:
        config = self._config
        self._directory = ClientDirectory(
            f"site {self._name}", config.collector, config.token, config.token_directory, config.client_config
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        children, self._children = self._children, {}
        directory, self._directory = self._directory, None
        async with asyncio.TaskGroup() as group:
            for child in children.values():
                group.create_task(child.close())
        if directory is not None:
            directory.close()

    # ---------------------------------------------------------------------------------------------------- questions

    async def jobs(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        return await self._asked("jobs", "", constraint, tuple(projection))

    async def slots(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        return await self._asked("slots", constraint, tuple(projection))

    async def owner_queue(self, schedd: str, constraint: str, names: Sequence[str]) -> Queue:
        child = self._child(f"owner {schedd}")
        queue = await child.call("owner_queue", schedd, constraint, tuple(names), deadline_s=self._config.deadline)
        assert isinstance(queue, Queue)
        return queue

    async def submitters(self, projection: Sequence[str]) -> Sequence[Ad]:
        return await self._asked("submitters", tuple(projection))

    async def _asked(self, question: str, *args: object) -> Sequence[Ad]:
        answer = await self._child("poll").call(question, *args, deadline_s=self._config.deadline)
        assert isinstance(answer, list)
        return answer

    def _child(self, purpose: str) -> WorkerProcess:
        """The process that does this and nothing else: neither a slow submit nor a silent schedd holds up a look."""
        if self._directory is None:
            raise UnavailableError(f"site {self._name} is not connected")
        self._directory.refresh()
        if purpose not in self._children:
            config = self._config
            self._children[purpose] = WorkerProcess(_SIDE, config.collector, config.schedd, env=self._directory.env)
        return self._children[purpose]

    # -------------------------------------------------------------------------------------------------------- orders

    async def submit(self, batch: Submission) -> int:
        child = self._child("orders")
        try:
            inputs = await asyncio.to_thread(self._shelves.lay_out, batch)
        except OSError as error:
            raise RejectedError(f"{self._config.work_directory}: {error.strerror or error}", FaultKind.DOWN) from None
        macros = f"inputs = {inputs}\noutputs = {self._shelves.outputs}\n"
        try:
            cluster = await child.call(
                "submit",
                macros + batch.description,
                batch.columns,
                batch.rows,
                self._config.spool,
                deadline_s=self._config.submit_deadline,
            )
        except UnavailableError as error:  # no answer, or no last words: nobody knows
            raise OutcomeUnknownError(f"submit: {error}") from None
        assert isinstance(cluster, int)
        return cluster

    async def remove(self, job_ids: Sequence[str], why: str, *, force: bool = False) -> None:
        if not job_ids:
            return
        child = self._child("orders")
        try:
            await child.call("remove", tuple(job_ids), why, force, deadline_s=self._config.deadline)
        except UnavailableError as error:
            raise OutcomeUnknownError(str(error)) from None

    # ---------------------------------------------------------------------------------------------------------- files

    async def collect(self, job_ids: Mapping[DroneId, str]) -> Mapping[DroneId, str]:
        if not self._config.spool:
            return {}
        wanted = {d: job for d, job in job_ids.items() if not await asyncio.to_thread(self._shelves.has_output, d)}
        if not wanted:
            return {}
        for drone_id in wanted:  # a controller on another host may have submitted it
            await asyncio.to_thread((self._shelves.outputs / drone_id).mkdir, 0o700, True, True)
        failed = await self._child("files").call("collect", tuple(wanted.values()), deadline_s=_COLLECT_S)
        assert isinstance(failed, dict)
        return {drone_id: failed[job] for drone_id, job in wanted.items() if job in failed}

    async def tidy(self, inputs_in_use: Collection[str], drones: Collection[DroneId]) -> None:
        await asyncio.to_thread(self._shelves.tidy, inputs_in_use, drones)
