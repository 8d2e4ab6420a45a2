"""When the schedds are asked for jobs that are done: beside the looks, at most once a minute, never in their way."""

from __future__ import annotations

import time
from collections.abc import Collection

from adapters.htcondor.overlay.history import Told
from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.shared.htcondor.client_directory import ClientDirectory
from provisioner.interfaces import AdapterError
from provisioner.worker_process import WorkerProcess

EVERY_S = 60.0
AFTER_FAILURE_S = 300.0
"""A history that took too long is not asked for at once again."""
LONGEST_S = 10.0


class Completions:
    """Asks through a child of its own, whose death costs the looks nothing."""

    def __init__(self, config: HTCondorConfig, controller: str, directory: ClientDirectory) -> None:
        self._child = WorkerProcess(
            "adapters.htcondor.overlay.history:Histories",
            config.collector,
            controller,
            config.schedds,
            config.constraint,
            config.owner_attribute,
            # a log of its own: why something failed is read out of it
            env=directory.env | {"_CONDOR_TOOL_LOG": str(directory.path / "history.log")},
        )
        self._deadline_s = min(LONGEST_S, config.deadline)
        self._again_at = 0.0
        self._told = Told(None)

    async def newest(self, gpus_only: bool, silent: Collection[str] = ()) -> Told:
        """Return the last answer, renewed if it is a minute old. Raise nothing: a failure is a notice. ``silent``:
        schedds that are not asked."""
        if time.monotonic() < self._again_at:
            return self._told
        try:
            told = await self._child.call("told", gpus_only, tuple(silent), deadline_s=self._deadline_s)
            assert isinstance(told, Told)
            self._told, pause_s = told, EVERY_S
        except AdapterError as error:
            self._told, pause_s = Told(None, (f"jobs that are done are not told: {error}",)), AFTER_FAILURE_S
        self._again_at = time.monotonic() + pause_s
        return self._told

    async def close(self) -> None:
        await self._child.close()
