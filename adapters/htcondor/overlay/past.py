"""Completed jobs of the last days by the schedds' histories, read once while the controller knows too little."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from operator import add

from adapters.htcondor.classads import history_end
from adapters.htcondor.daemons import Collectors
from adapters.htcondor.overlay.history import (
    HISTORY_PROJECTION,
    RUNS_IN_SLOTS,
    WITH_GPUS,
    ended_run,
)
from adapters.htcondor.overlay.schedds import queues_of
from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.shared.printing import printable
from provisioner.history import MAX_HISTORY_ROWS, RunHistoryView
from provisioner.interfaces import AuthError, UnavailableError
from provisioner.model import CompletedJob

PAST_DEADLINE_S = 50.0
ASKING_S = 28.0
"""Time after which no further schedd is asked: the bindings wait 20 s for one that is silent."""
PAST_READER = "adapters.htcondor.overlay.past:PastReader"


class PastReader:
    """Reader of the histories, in a worker process of its own: they are large files, and polls must not wait."""

    def __init__(
        self, config: HTCondorConfig, controller: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._controller = controller
        self._clock = clock
        self._collector = Collectors(config.collector)

    def completed(self, since: float) -> RunHistoryView:
        """Return the GPU jobs that completed after a time, of all schedds that answer. UnavailableError if none does.

        ``left_out`` is set if a schedd does not answer, or none of the time is left for it.
        """
        self._collector.read_clock()
        config = self._config
        found = list[CompletedJob]()
        left_out = False
        failures = list[str]()
        queues = queues_of(self._collector.schedds(), config.schedds)
        most = MAX_HISTORY_ROWS // max(1, len(queues))
        projection = sorted({*HISTORY_PROJECTION, config.owner_attribute})
        began_at = self._clock()
        for queue in queues:
            if self._clock() - began_at > ASKING_S:
                failures.append("no time was left")
                continue
            ahead_s = self._collector.skew_s + queue.ahead_s
            ended = f"JobStatus == 4 && CompletionDate >= {int(since + ahead_s)}"
            wanted = f"{ended} && {RUNS_IN_SLOTS} && {WITH_GPUS} && ({config.constraint})"
            end = history_end(since + ahead_s)
            try:
                with self._collector.errors.translated(f"schedd {printable(queue.name, 80)}"):
                    queue.ask()
                    left = list(queue.schedd.history(wanted, projection, most, end))
                    # LeaveJobInQueue
                    stay = list(queue.schedd.query(wanted, projection=projection, limit=most))
            except (UnavailableError, AuthError) as error:
                failures.append(str(error))
                continue
            left_out = left_out or max(len(left), len(stay)) >= most
            for ad in (*left, *stay):
                run = ended_run(
                    ad, queue.name, self._controller, config.owner_attribute, partial(add, -ahead_s)
                )
                if run is not None and since <= run.ended_at <= time.time():
                    found.append(run)
        if len(failures) == len(queues):
            raise UnavailableError("; ".join(failures[:3]) or "the collector lists no schedd")
        return RunHistoryView(tuple(found), left_out or bool(failures))
