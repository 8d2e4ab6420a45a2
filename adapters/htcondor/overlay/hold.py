"""Holds of users' idle jobs, in a worker process of their own."""

from __future__ import annotations

from collections.abc import Collection

from adapters.htcondor import classad2, htcondor2
from adapters.htcondor.classads import IDLE
from adapters.htcondor.daemons import Collectors
from adapters.htcondor.overlay.schedds import queues_of
from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.shared.printing import printable
from provisioner.interfaces import AuthError, HoldResult, UnavailableError
from provisioner.model import WHOLE_GPU, JobClass

_REFUSED = (
    "it may not hold jobs of others: add the token's identity to QUEUE_SUPER_USERS, and to the schedd's users: submit a"
    " job as it once, or `condor_qusers -add` (HTCondor 25)"
)


class JobHolder:
    """Server of ``hold``."""

    def __init__(self, config: HTCondorConfig) -> None:
        self._config = config
        self._collector = Collectors(config.collector)

    def hold(self, jobs: JobClass, reason: str, silent: Collection[str] = ()) -> HoldResult:
        """Hold the idle jobs of a class in all schedds that count, without the schedds ``silent``: one would hang."""
        held = 0
        faults = list[str]()
        wanted = constraint(jobs, reason, self._config.constraint)
        for queue in queues_of(self._collector.schedds(), self._config.schedds):
            name = printable(queue.name, 80)
            if name in silent:
                faults.append(f"schedd {name}: it did not answer when it was polled")
                continue
            try:
                with self._collector.errors.translated(f"schedd {name}"):
                    if not queue.schedd.query(wanted, projection=["ClusterId"], limit=1):
                        continue
                    # 25.14 ignores a bare text
                    result = queue.schedd.act(htcondor2.JobAction.Hold, wanted, (reason, 0))
            except (UnavailableError, AuthError) as error:
                faults.append(str(error))
                continue
            held += int(result.get("TotalSuccess", 0))
            if result.get("TotalPermissionDenied", 0):
                faults.append(f"schedd {name}: {_REFUSED}")
        return HoldResult(held, tuple(faults))


def constraint(jobs: JobClass, reason: str, operators: str) -> str:
    """Return the constraint for the idle jobs of a class that were not released after such a hold."""
    share = f"ifThenElse(GpuMilli is undefined, RequestGPUs * {WHOLE_GPU}, GpuMilli)"
    size = f"{share} == {jobs.gpu_milli} && (RequestCpus ?: 1) == {jobs.cpus}"
    size += f" && int(RequestMemory ?: 0) == {jobs.memory_mib}"
    known = f'substr(LastHoldReason ?: "", 0, {len(reason.partition(":")[0])})'
    new = f"{known} != {classad2.quote(reason.partition(':')[0])}"
    return f"JobStatus == {IDLE} && Owner == {classad2.quote(jobs.owner)} && {size} && {new} && ({operators})"
