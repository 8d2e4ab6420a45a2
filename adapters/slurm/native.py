"""Transport by pyslurm, which blocks and may end its process, and therefore runs in worker processes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from adapters.slurm.records import Partition, Reservation, SlurmJob, SlurmNode, SlurmSubmission
from provisioner.interfaces import OutcomeUnknownError, UnavailableError
from provisioner.model import FaultKind
from provisioner.worker_process import WorkerProcess

if TYPE_CHECKING:  # the worker's interpreter has nothing of what the settings need
    from adapters.slurm.settings import SlurmSiteConfig

T = TypeVar("T")

_WORKER = "adapters.slurm.native_worker:NativeWorker"
_NO_CONFIGURATION = re.compile(
    r"could not establish a configuration source|unable to process configuration file|fetch_config", re.IGNORECASE
)
PYSLURM_REQUIRED = (
    "the native transport needs pyslurm: pip install 'gpu-drone-provisioner[slurm-native]' on a host of the cluster"
    " with a C compiler, Slurm's headers and libslurmfull.so, of the release of Slurm that this pyslurm is for"
)


class SlurmNativeClient:
    """The cluster of this host's slurm.conf, as the account that this process runs as."""

    def __init__(self, config: SlurmSiteConfig, name: str) -> None:
        self._config, self._name = config, name
        self._workers: dict[str, WorkerProcess] = {}
        """By purpose: a slow submission does not delay a poll. Each is started when it is first needed."""
        self._entered = False

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._entered = False
        workers, self._workers = self._workers, {}
        async with asyncio.TaskGroup() as group:
            for worker in workers.values():
                group.create_task(worker.close())

    # ---------------------------------------------------------------------------------------------------- questions

    async def own_jobs(self) -> Sequence[SlurmJob]:
        return await self._query(list, "own_jobs")

    async def ended_jobs(self, remote_ids: Collection[str], since: float) -> Sequence[SlurmJob] | None:
        if self._config.accounting is False:
            return None
        answer = await self._query(object, "ended_jobs", tuple(remote_ids), since)
        assert answer is None or isinstance(answer, list)
        return answer

    async def active_jobs(self, partitions: Collection[str]) -> Sequence[SlurmJob]:
        return await self._query(list, "active_jobs", tuple(partitions))

    async def nodes(self) -> Sequence[SlurmNode]:
        return await self._query(list, "nodes")

    async def partitions(self) -> Sequence[Partition]:
        return await self._query(list, "partitions")

    async def reservations(self) -> Sequence[Reservation]:
        return await self._query(list, "reservations")

    def notices(self) -> Sequence[str]:
        return ()

    async def configuration(self) -> Mapping[str, str]:
        return await self._query(dict, "configuration")

    async def _query(self, kind: type[T], method: str, *args: object, purpose: str = "poll") -> T:
        try:
            answer = await self._worker(purpose).call(method, *args, deadline_s=self._config.deadline)
        except UnavailableError as error:
            raise explain_error(error) from None
        assert isinstance(answer, kind)
        return answer

    def _worker(self, purpose: str) -> WorkerProcess:
        if not self._entered:
            raise UnavailableError(f"site {self._name} is not connected")
        if purpose not in self._workers:
            self._workers[purpose] = WorkerProcess(_WORKER, python=self._config.native.python)
        return self._workers[purpose]

    # -------------------------------------------------------------------------------------------------------- orders

    async def submit(self, submission: SlurmSubmission) -> int:
        worker = await self._ready_worker()
        try:
            answer = await worker.call("submit", submission, deadline_s=self._config.submit_deadline)
        except UnavailableError as error:  # the worker ended or did not answer
            raise OutcomeUnknownError(f"submit: {error}") from None
        if isinstance(answer, str):
            raise UnavailableError(f"submit: {answer}")
        assert isinstance(answer, int)
        return answer

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        if not remote_ids:
            return
        worker = await self._ready_worker()
        try:
            await worker.call("cancel", tuple(remote_ids), kill, deadline_s=self._config.deadline)
        except UnavailableError as error:
            raise OutcomeUnknownError(f"cancel: {error}") from None

    async def _ready_worker(self) -> WorkerProcess:
        """Return the started worker for orders: an order that fails before that has certainly not been sent."""
        await self._query(object, "ready", purpose="orders")
        return self._worker("orders")


def explain_error(error: UnavailableError) -> UnavailableError:
    """Return the error in plain words, if libslurm ended the worker because it found no configuration."""
    if not _NO_CONFIGURATION.search(str(error)):
        return error
    message = "libslurm finds no usable slurm.conf on this host (SLURM_CONF, its default path, or the network)"
    return UnavailableError(
        f"{message}: the native transport works on hosts of the cluster only. {error}", FaultKind.CONFIG
    )
