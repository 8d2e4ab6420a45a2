"""Comparison of the ledger with itself and with AUDITOR's records, by the ids of jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from provisioner.accounting.entries import SECONDS_A_DAY, Outcome
from provisioner.values import frozen

SAME_S = 1
"""Held times that differ by no more are equal: both count whole seconds."""
HELD_COMPONENT = "GPUHeldMilliSeconds"
"""Component of a record with what its job held, as `render accounting` names it."""


class LedgerRun(NamedTuple):
    """Entries of a run, summed over its days; its fields are columns of the store's queries."""

    drone_id: str
    job_id: str
    begun_at: int
    ended_at: int
    site: str
    type: str
    model: str
    accounting_group: str
    vo: str
    owner: str
    outcome: str
    milli: int
    seconds: int
    held: int
    used: int | None
    energy_j: int | None
    cpu_s: int | None
    memory_mib: int | None

    @property
    def ends_job(self) -> bool:
        """Return True if the job left the queue with this run, so that a record of it is due."""
        return self.outcome in (Outcome.COMPLETED, Outcome.FAILED)


@frozen
class AuditorRecord:
    """A record of AUDITOR's HTCondor collector."""

    id: str
    job_id: str
    held: int | None
    stop_at: int


class Finding(StrEnum):
    UNBALANCED = "unbalanced"
    """A day of a drone, or of all, does not add up."""
    UNBOOKED = "unbooked"
    """A drone on record has no entry."""
    MISSING = "missing"
    """AUDITOR has no record of the job."""
    DOUBLED = "doubled"
    """AUDITOR has several records of the job."""
    DIFFERENT = "different"
    """AUDITOR's record says that the job held something else."""
    UNKNOWN = "unknown"
    """The ledger has no run of the job."""


@frozen
class LedgerFinding:
    kind: Finding
    day: int
    job_id: str = ""
    drone_id: str = ""
    text: str = ""


def job_of(record_id: str, prefix: str) -> str:
    """Return the id of a job as the ledger has it: the record's is ``PREFIX-SCHEDD#CLUSTER.PROC#TIME``."""
    return record_id.removeprefix(f"{prefix}-").rpartition("#")[0]


def parse_record(record: Mapping[str, Any], prefix: str, stop_at: int) -> AuditorRecord:
    """Return a record of AUDITOR's interface. Raises KeyError, or TypeError, if it is none."""
    amounts = {each["name"]: each["amount"] for each in record["components"]}
    name = str(record["record_id"])
    return AuditorRecord(name, job_of(name, prefix), amounts.get(HELD_COMPONENT), stop_at)


def compare(runs: Sequence[LedgerRun], records: Iterable[AuditorRecord]) -> Iterator[LedgerFinding]:
    """Yield the differences between the runs that ended in a period and the records of it."""
    of_job = defaultdict[str, list[AuditorRecord]](list)
    for record in records:
        of_job[record.job_id].append(record)
    last = {run.job_id: run for run in sorted(runs, key=lambda run: run.ended_at)}
    for job_id, run in last.items():
        found = of_job.pop(job_id, [])
        day = run.ended_at // SECONDS_A_DAY
        if not found and run.ends_job:
            text = "AUDITOR has no record"
            yield LedgerFinding(Finding.MISSING, day, job_id, run.drone_id, text)
        if len(found) > 1:
            text = f"{len(found)} records: {', '.join(sorted(each.id for each in found))}"
            yield LedgerFinding(Finding.DOUBLED, day, job_id, run.drone_id, text)
        for each in found[:1] if run.ends_job else ():
            if each.held is not None and abs(each.held - run.held) > run.milli * SAME_S:
                text = f"AUDITOR has {each.held} GPU-ms, the ledger {run.held}"
                yield LedgerFinding(Finding.DIFFERENT, day, job_id, run.drone_id, text)
    for job_id, found in of_job.items():
        text = "the ledger has no run of this job"
        yield LedgerFinding(Finding.UNKNOWN, found[0].stop_at // SECONDS_A_DAY, job_id, text=text)


def days_without_records(findings: Iterable[LedgerFinding], runs: Iterable[LedgerRun]) -> list[int]:
    """Return the days of which no record is there although some were due: the collector was off."""
    due = Counter(run.ended_at // SECONDS_A_DAY for run in runs if run.ends_job)
    missing = Counter(each.day for each in findings if each.kind is Finding.MISSING)
    return sorted(day for day, number in due.items() if missing[day] == number)
