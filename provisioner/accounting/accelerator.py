"""Usage records of accelerators in the form of EGI: ``APEL-accelerator-message`` 0.1.

Source: EGI's documentation of cloud accounting, draft 4 of 2021-02-24. It defines records of cloud
machines alone; those of batch jobs have the associated record type ``job`` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from provisioner.accounting.verification import LedgerRun
from provisioner.settings import WHOLE_GPU

MESSAGE_TYPE, VERSION = "APEL-accelerator-message", "0.1"


def accelerator_message(
    runs: Iterable[LedgerRun], year: int, month: int, sites: Mapping[str, str]
) -> dict[str, Any]:
    """Return the message of runs that held GPUs. ``sites``: names in GOCDB by ours."""
    records = [_record(run, year, month, sites) for run in runs if run.held]
    return {"Type": MESSAGE_TYPE, "Version": VERSION, "UsageRecords": records}


def _record(run: LedgerRun, year: int, month: int, sites: Mapping[str, str]) -> dict[str, Any]:
    record = {
        "MeasurementMonth": month,
        "MeasurementYear": year,
        "AssociatedRecordType": "job",
        "AssociatedRecord": run.job_id,
        "GlobalUserName": run.owner,
        "FQAN": run.vo,
        "SiteName": sites.get(run.site, run.site),
        "Count": run.milli / WHOLE_GPU,
        "AvailableDuration": run.seconds,
        "Type": "GPU",
        "Model": run.model,
    }
    if run.used is not None:
        record["ActiveDuration"] = min(run.seconds, round(run.seconds * run.used / run.held))
    return record
