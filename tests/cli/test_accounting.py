"""Reports of the ledger: what the verbs say of a month on record."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from provisioner.accounting.accelerator import accelerator_message
from provisioner.accounting.verification import LedgerRun
from tests.accounting.november import DAY, HOUR, NOVEMBER, write_november
from tests.cli.conftest import Cli


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("accounting") / "record.db"
    write_november(path)
    return path


def test_the_report_has_a_row_for_each_vo_and_all_that_was_pledged(cli: Cli, month: Path) -> None:
    found = cli("accounting", "report", "--month", "2026-11", "-o", "json", "--store", month).json
    hours = {key: found[f"{key}_gpu_s"] / 3600 for key in ("life", "jobs", "boot", "idle")}
    assert hours == {"life": 20, "jobs": 16, "boot": 0.5, "idle": 3.5}
    assert found["draining_gpu_s"] == 0 and found["final"] is False
    cms, atlas, lhcb = found["items"]
    assert (cms["name"], cms["runs"], cms["held_gpu_s"] / 3600, cms["lost_gpu_s"]) == (
        "cms",
        2,
        14,
        0,
    )
    assert (cms["mean"], cms["weighted"], cms["cost"]) == (0.5, 42, 28)
    assert (cms["energy_j"], cms["modelled_j"]) == (3_600_000, 4 * 3600 * 400)
    assert (cms["pledge_h"], cms["delivered"]) == (20, 0.7)
    assert (atlas["name"], atlas["lost_gpu_s"] / 3600, atlas["mean"]) == ("atlas", 2, None)
    assert (lhcb["name"], lhcb["runs"], lhcb["delivered"]) == ("lhcb", 0, 0)
    [budget] = found["budgets"]
    assert (budget["used_h"], budget["left_h"]) == (20, 80)


def test_rows_are_of_all_that_is_asked_for(cli: Cli, month: Path) -> None:
    words = ("accounting", "report", "--month", "2026-11", "--store", month)
    rows = cli(*words, "--by", "site,outcome", "-o", "csv", "--columns", "name,runs").out
    assert rows.splitlines() == [
        "name,runs",
        '"topas, completed",1',
        '"topas, failed",1',
        '"topas, preempted",1',
    ]
    table = cli(*words).out
    assert "gpu-h of drones" in table and "Budgets" in table and "cms" in table
    assert cli(*words, "--by", "vo,colour").code == 2
    assert cli("accounting", "report", "--month", "2026-13", "--store", month).code == 2
    empty = cli("accounting", "report", "--month", "2026-10", "-o", "json", "--store", month).json
    assert empty["life_gpu_s"] == 0


def test_the_statement_tells_an_owner_what_ran_and_what_gave_way(cli: Cli, month: Path) -> None:
    words = ("accounting", "statement", "--month", "2026-11", "--store", month, "-o", "json")
    found = cli(*words, "--owner", "topas").json
    assert found["life_gpu_s"] / 3600 == 20 and found["preempted_runs"] == 1
    assert (found["wait_within_s"], found["wait_over_s"]) == (0, 0)
    assert [row["name"] for row in found["items"]] == ["cms", "atlas"]
    assert cli(*words, "--owner", "nowhere").code == 1


def auditor_record(job: str, held: int, stop_h: float, prefix: str = "htcondor") -> dict[str, Any]:
    stop = datetime.fromtimestamp(NOVEMBER + DAY + stop_h * HOUR, UTC)
    return {
        "record_id": f"{prefix}-{job}#1796000000",
        "stop_time": stop.isoformat().replace("+00:00", "Z"),
        "components": [{"name": "GPUHeldMilliSeconds", "amount": held, "scores": []}],
    }


ONE = auditor_record("s#1.0", 36_000_000, 11)
TWO = auditor_record("s#2.0", 14_400_000, 15)


@pytest.mark.parametrize(
    ("records", "kinds"),
    [
        ([ONE, TWO], []),
        ([ONE], ["missing"]),
        ([ONE, TWO, {**TWO, "record_id": "htcondor-s#2.0#1796000001"}], ["doubled"]),
        ([ONE, auditor_record("s#2.0", 14_402_000, 15)], ["different"]),
        ([ONE, auditor_record("s#2.0", 14_401_000, 15)], []),
        ([ONE, TWO, auditor_record("s#9.0", 1, 15)], ["unknown"]),
        ([ONE, TWO, auditor_record("s#9.0", 1, 15, "slurm")], []),
        ([ONE, TWO, auditor_record("s#9.0", 1, 24 * 40)], []),
    ],
)
def test_verify_finds_each_difference_with_its_job(
    cli: Cli, month: Path, tmp_path: Path, records: list[dict[str, Any]], kinds: list[str]
) -> None:
    """A run that was preempted has no record: its job is still in the queue."""
    file = tmp_path / "records.json"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    metrics = tmp_path / "provisioner.prom"
    words = ("accounting", "verify", "--month", "2026-11", "--records", file, "--store", month)
    ran = cli(*words, "--metrics", metrics, "-o", "json")
    assert ran.code == (3 if kinds else 0)
    assert [each["kind"] for each in ran.json["items"]] == kinds
    assert all(each["job_id"] and each["text"] for each in ran.json["items"])
    lines = metrics.read_text().splitlines()
    for kind in kinds:
        assert f'provisioner_accounting_findings{{kind="{kind}"}} 1' in lines


def test_verify_says_on_which_days_the_collector_was_off(
    cli: Cli, month: Path, tmp_path: Path
) -> None:
    file = tmp_path / "records.json"
    file.write_text("[]")
    words = ("accounting", "verify", "--month", "2026-11", "--records", file, "--store", month)
    ran = cli(*words)
    assert ran.code == 3 and "no record at all of 2026-11-02" in ran.err
    file.write_text('{"not": "a record"}')
    assert cli(*words).code == 1
    file.write_text(json.dumps([ONE, TWO]))
    assert cli(*words).code == 0, "silent after the back-fill"


TARDIS_RECORD = """{"components": [{"amount": 8, "name": "Cores", "scores": [{"name": "HEPSPEC", "value": 14.4}]},
    {"amount": 64, "name": "Memory", "scores": []}, {"amount": 1, "name": "GPUs", "scores": []}],
    "meta": {"group_id": ["tardis"], "site_id": ["Topas"], "user_id": ["tardis"]}, "record_id": "topas-0f2d3a4b5c",
    "runtime": 68400, "start_time": "2026-11-02T01:00:00Z", "stop_time": "2026-11-02T20:00:00Z"}"""
"""As ``tardis.plugins.auditor`` of TARDIS 0.9.0 makes it: of a drone, from Available to Down."""


@pytest.mark.parametrize("site", ["topas", "htcondor"])
def test_verify_leaves_the_records_of_tardis_out_and_says_so(
    cli: Cli, month: Path, tmp_path: Path, site: str
) -> None:
    ended = json.loads(TARDIS_RECORD) | {"record_id": f"{site}-0f2d3a4b5c"}
    lives = ended | {"record_id": f"{site}-1a2b3c4d5e", "runtime": None, "stop_time": None}
    file = tmp_path / "records.json"
    file.write_text(json.dumps([ONE, ended, lives, TWO]))
    words = ("accounting", "verify", "--month", "2026-11", "--records", file, "--store", month)
    ran = cli(*words)
    assert ran.code == 0, ran.err
    assert "1 record without" in ran.err and "not compared" in ran.err


@pytest.mark.parametrize(
    ("harm", "kind", "drone_id"),
    [
        ("UPDATE ledger_drones SET idle = idle - 1", "unbalanced", "kit-ab12-1"),
        ("DELETE FROM ledger_runs WHERE job_id = 's#2.0'", "unbalanced", "kit-ab12-1"),
        ("UPDATE ledger_days SET held = held + 1 WHERE account = 'idle'", "unbalanced", ""),
        ("DELETE FROM ledger_drones", "unbooked", "kit-ab12-1"),
    ],
)
def test_verify_finds_what_does_not_add_up(
    cli: Cli, month: Path, tmp_path: Path, harm: str, kind: str, drone_id: str
) -> None:
    copy = tmp_path / "record.db"
    with closing(sqlite3.connect(month)) as old, closing(sqlite3.connect(copy)) as new:
        old.backup(new)
        new.execute(harm)
        new.commit()
    words = ("accounting", "verify", "--month", "2026-11", "--store", copy, "-o", "json")
    ran = cli(*words)
    assert ran.code == 3
    assert [(each["kind"], each["drone_id"]) for each in ran.json["items"]] == [(kind, drone_id)]


ACCELERATOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["Type", "Version", "UsageRecords"],
    "properties": {
        "Type": {"const": "APEL-accelerator-message"},
        "Version": {"const": "0.1"},
        "UsageRecords": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["FQAN", "SiteName", "Count", "AvailableDuration", "Type"],
                "properties": {
                    "MeasurementMonth": {"type": "integer", "minimum": 1, "maximum": 12},
                    "MeasurementYear": {"type": "integer"},
                    "AssociatedRecordType": {"type": "string"},
                    "AssociatedRecord": {"type": "string"},
                    "GlobalUserName": {"type": "string"},
                    "FQAN": {"type": "string"},
                    "SiteName": {"type": "string"},
                    "Count": {"type": "number", "exclusiveMinimum": 0},
                    "Cores": {"type": "integer"},
                    "ActiveDuration": {"type": "integer", "minimum": 0},
                    "AvailableDuration": {"type": "integer", "minimum": 0},
                    "BenchmarkType": {"type": "string"},
                    "Benchmark": {"type": "number"},
                    "Type": {"enum": ["GPU", "FPGA", "Other"]},
                    "Model": {"type": "string"},
                },
            },
        },
    },
}
"""Made from the table of EGI's documentation of cloud accounting (draft 4, 2021-02-24)."""


def test_the_accelerator_message_is_as_egi_defines_it(cli: Cli, month: Path) -> None:
    ran = cli("accounting", "accelerator", "--month", "2026-11", "--store", month)
    message = json.loads(ran.out)
    jsonschema.validate(message, ACCELERATOR)
    first, second, _ = message["UsageRecords"]
    assert (first["Count"], first["AvailableDuration"], first["ActiveDuration"]) == (
        1,
        36000,
        18000,
    )
    assert "ActiveDuration" not in second, "it was not measured"


def test_a_share_is_a_part_of_an_accelerator_and_is_never_active_for_longer_than_it_was_there() -> (
    None
):
    quarter = LedgerRun(
        *("d", "s#1.0", 0, 100, "topas", "a100-4", "A100", "grp", "cms", "ann", "completed"),
        *(250, 100, 25_000, 30_000, None, None, None),
    )
    [record] = accelerator_message([quarter], 2026, 11, {"topas": "FZK"})["UsageRecords"]
    assert (record["Count"], record["SiteName"]) == (0.25, "FZK")
    assert record["ActiveDuration"] == record["AvailableDuration"] == 100


def test_runs_are_listed_for_spreadsheets(cli: Cli, month: Path) -> None:
    words = ("accounting", "runs", "--month", "2026-11", "--store", month, "-o", "csv")
    out = cli(*words, "--columns", "job_id,vo,outcome,held_gpu_s").out
    assert out.splitlines() == [
        "job_id,vo,outcome,held_gpu_s",
        "s#1.0,cms,completed,36000.0",
        "s#2.0,cms,failed,14400.0",
        "s#3.0,atlas,preempted,7200.0",
    ]
