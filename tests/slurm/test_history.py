"""Past of a Slurm site by its accounting, read day by day."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from adapters.slurm import history
from adapters.slurm.capacity import resolve_types
from adapters.slurm.history import FIRST_SLICE_S, READING_S, SMALL_ANSWER, past_starts, site_history
from adapters.slurm.records import SlurmClient, SlurmJob
from adapters.slurm.rest import parse_past_job
from adapters.slurm.rest import parse_past_jobs as parse_past_records
from adapters.slurm.settings import SlurmOwnerConfig
from adapters.slurm.tools import PAST_SACCT_COLUMNS, parse_past_jobs
from provisioner.history import PastStart, SiteHistoryView
from provisioner.interfaces import UnavailableError
from tests.slurm.test_capacity import A100, NOW, PARTITIONS, config

TYPES = resolve_types([A100], PARTITIONS, config())
OWNER = SlurmOwnerConfig(partitions=["accelerated"], accounts=["etp"])
SLICE_S = 86400.0
SINCE = NOW - 4 * SLICE_S
JOB = SlurmJob(
    "1",
    "train",
    "COMPLETED",
    account="etp",
    partition="accelerated",
    submitted_at=NOW - 1000,
    started_at=NOW - 900,
    ends_at=NOW - 600,
    nodes=("hkn0801",),
    gpus={"a100": 1},
)


class Accounts:
    """Accounting that holds these jobs, each answer of which takes ``takes_s``."""

    def __init__(self, *jobs: SlurmJob, takes_s: float = 0.0) -> None:
        self.jobs, self.takes_s, self.now_s = jobs, takes_s, 0.0
        self.asked: list[tuple[float, float]] = []
        self.fails_at = 0

    async def past_jobs(
        self, partitions: Collection[str], since: float, until: float
    ) -> Sequence[SlurmJob] | None:
        self.asked.append(((since - NOW) / FIRST_SLICE_S, (until - NOW) / FIRST_SLICE_S))
        self.now_s += self.takes_s
        if len(self.asked) == self.fails_at:
            raise UnavailableError("answer too long")
        return [
            job for job in self.jobs if job.started_at < until and (job.ends_at or NOW) >= since
        ]

    async def told(self, owner: SlurmOwnerConfig | None = OWNER, user: str = "") -> SiteHistoryView:
        cluster, nodes = cast(SlurmClient, self), ["hkn0801", "hkn0802"]
        return await site_history(
            cluster, TYPES, nodes, owner, SINCE, NOW, user, lambda: self.now_s
        )


async def test_the_owners_jobs_of_some_days_add_up_and_each_counts_once() -> None:
    early = NOW - 2.5 * SLICE_S
    long = replace(
        JOB,
        remote_id="2",
        started_at=early,
        submitted_at=early,
        ends_at=NOW - 800,
        gpus={"a100": 4},
    )
    runs = replace(
        JOB, remote_id="3", state="RUNNING", started_at=NOW - 100, ends_at=NOW + 9e4, node_count=2
    )
    runs = replace(runs, nodes=("hkn0802", "hkn0801", "elsewhere"))
    others = [
        replace(JOB, remote_id="4", account="cms"),
        replace(JOB, remote_id="5", nodes=("hkn0999",)),
    ]
    accounts = Accounts(JOB, long, runs, *others)
    told = await accounts.told()
    assert accounts.asked == [
        (-1, 0),
        (-3, -1),
        (-7, -3),
        (-15, -7),
        (-31, -15),
        (-63, -31),
        (-96, -63),
    ]
    steps = [(at - NOW, gpu_milli // 1000) for at, gpu_milli in told.owner_steps]
    assert steps == [
        (-63 * FIRST_SLICE_S, 0),
        (early - NOW, 4),
        (-900, 5),
        (-800, 1),
        (-600, 0),
        (-100, 2),
    ]
    assert not told.left_out
    assert (await accounts.told(None)).owner_steps == ()
    assert (await Accounts(*others[:1]).told()).owner_steps == (), (
        "they may be hidden: that is no use of 0"
    )


async def test_where_no_gpus_are_accounted_the_use_is_unknown() -> None:
    assert (await Accounts(replace(JOB, gpus={})).told()).owner_steps == ()


async def test_a_slow_or_full_account_is_read_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = replace(JOB, remote_id="2", started_at=NOW - 3 * SLICE_S, ends_at=NOW - 10)
    told = await Accounts(JOB, old, takes_s=READING_S).told()
    assert told.left_out and told.owner_steps[0] == (NOW - FIRST_SLICE_S, 1000)
    monkeypatch.setattr(history, "MAX_HISTORY_ROWS", 2)
    assert (await Accounts(JOB, old).told()).left_out


async def test_large_answers_stay_small_and_one_that_fails_costs_no_other() -> None:
    old = replace(JOB, remote_id="x", started_at=NOW - 3 * SLICE_S, ends_at=NOW - 10)
    busy = Accounts(*(replace(old, remote_id=f"{n}") for n in range(SMALL_ANSWER + 1)))
    assert len((await busy.told()).owner_steps) > 1
    assert {until - since for since, until in busy.asked if until > -72} == {1.0}
    for fails_at in (1, 4):
        accounts = Accounts(JOB, old)
        accounts.fails_at = fails_at
        if fails_at == 1:
            with pytest.raises(UnavailableError, match="too long"):
                await accounts.told()
            continue
        told = await accounts.told()
        assert told.left_out and told.owner_steps[0] == (NOW - 7 * FIRST_SLICE_S, 1000)


async def test_jobs_of_nobody_but_us_are_not_the_whole_use() -> None:
    ours = replace(JOB, user="kit")
    assert (await Accounts(ours).told(user="kit")).owner_steps == ()
    assert (
        await Accounts(ours, replace(JOB, remote_id="9", user="anna", account="cms")).told(
            user="kit"
        )
    ).owner_steps


async def test_without_accounting_nothing_is_known() -> None:
    class Without(Accounts):
        async def past_jobs(self, *_: object) -> None:
            return None

    assert await Without(JOB).told() == SiteHistoryView()


@pytest.mark.parametrize(
    ("news", "counts"),
    [
        ({}, True),
        ({"gpus": {"": 1}}, True),
        ({"gpus": {"a100": 2}}, False),
        ({"gpus": {}}, False),
        ({"partition": "accelerated-h100"}, False),
        ({"node_count": 2}, False),
        ({"submitted_at": 0.0}, False),
        ({"submitted_at": NOW}, False),
    ],
)
def test_jobs_that_ask_for_what_a_drone_asks_for_tell_its_queue(
    news: dict[str, Any], counts: bool
) -> None:
    found = list(past_starts(TYPES[0], [replace(JOB, **news)]))
    assert found == ([PastStart("a100", NOW - 900, 100.0)] if counts else [])


ROW = {
    **dict.fromkeys(PAST_SACCT_COLUMNS, ""),
    **{
        "JobID": "7",
        "State": "CANCELLED by 5",
        "Submit": "1000",
        "Eligible": "1600",
        "Start": "2000",
        "End": "3000",
    },
    **{
        "NodeList": "hkn[0801-0802]",
        "NNodes": "2",
        "AllocTRES": "billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4",
    },
}


def sacct(*rows: dict[str, str]) -> str:
    lines = [
        PAST_SACCT_COLUMNS,
        *([{**ROW, **row}[name] for name in PAST_SACCT_COLUMNS] for row in rows),
    ]
    return "".join("@".join(line) + "@\n" for line in lines)


def test_rows_of_sacct_that_make_no_sense_are_left_out() -> None:
    odd = [
        {"Start": "yesterday"},
        {"JobID": "rm -rf /"},
        {"NodeList": "x[1-999999999]"},
        {"State": ""},
    ]
    odd += [{"JobID": "8_[0-999999999]", "State": "PENDING"}]
    (job,) = parse_past_jobs(sacct(*odd, {}), "@")
    assert (job.state, job.submitted_at, job.started_at, job.ends_at) == (
        "CANCELLED",
        1600.0,
        2000.0,
        3000.0,
    )
    assert (job.nodes, dict(job.gpus), job.node_count) == (("hkn0801", "hkn0802"), {"a100": 2}, 2)
    (never,) = parse_past_jobs(sacct({"Eligible": "Unknown", "AllocTRES": ""}), "@")
    assert (never.submitted_at, dict(never.gpus)) == (1000.0, {})


def test_slurmrestd_tells_the_same() -> None:
    tres = [{"type": "cpu", "name": "", "count": 8}, {"type": "gres", "name": "gpu", "count": 4}]
    tres += [{"type": "gres", "name": "gpu:a100", "count": 4}, "odd"]  # type: ignore[list-item]
    record = {
        **{
            "job_id": 7,
            "nodes": "hkn[0801-0802]",
            "allocation_nodes": 2,
            "state": {"current": ["COMPLETED"]},
        },
        **{
            "time": {"submission": 1000, "eligible": 1600, "start": 2000, "end": 3000},
            "tres": {"allocated": tres},
        },
    }
    job = parse_past_job(record)
    assert (job.submitted_at, job.started_at, dict(job.gpus), job.node_count) == (
        1600.0,
        2000.0,
        {"a100": 2},
        2,
    )
    with pytest.raises(ValueError, match="without a state"):
        parse_past_job({"job_id": 7})
    waits = {**record, "state": {"current": ["PENDING"]}}
    assert parse_past_records([{"job_id": 7}, waits, record]) == [job]
