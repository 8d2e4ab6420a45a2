"""The tables of the reference rules: what the checks say to results, and that they say what they cannot tell."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.deciding import table
from benchmarks.deciding.checks import Verdict, badput_ratio, cases_of, verdicts
from benchmarks.deciding.rows import Row, merged

DAYS = 10.0


def row(rule: str, seed: int = 1, **figures: object) -> Row:
    """240 GPU-hours a day: 10 GPUs in use."""
    told: dict[str, object] = {
        "waste": 0.04,
        "idle": 0.002,
        "boot_release": 0.008,
        "badput": 0.03,
        "wait_mean_s": 100.0,
        "wait_p50_s": 10.0,
        "wait_p95_s": 500.0,
        "good_h": 240.0 * DAYS,
    }
    fixed: dict[str, object] = {
        "trace": "6214e9",
        "owner": "vc8Sj",
        "days": math.inf,
        "span_days": DAYS,
        "jobs": 5,
        "jobs_done": 5,
        "burst_first_s": None,
        "burst_most_s": None,
        "requests": 7,
        "preempted": 0,
        "decision_mean_s": 1e-4,
        "decision_worst_s": 1e-3,
        "violations": (),
    }
    return Row(**(fixed | told | {"rule": rule, "seed": seed} | figures))  # type: ignore[arg-type]


def judged(rows: Sequence[Row]) -> dict[str, Verdict]:
    (case,) = cases_of(rows).values()
    return {verdict.what: verdict for verdict in verdicts(case)}


ALL = [
    row("ours"),
    row("karpenter", badput=0.05),
    row("always-on", waste=3.0),
    row("cobald-pools", waste=0.4),
    row("cobald-low-waste", waste=0.25),
    row("clairvoyant", waste=0.01),
]


def test_all_checks_are_judged_where_all_rules_were_run() -> None:
    found = judged(ALL)
    assert [verdict.met for verdict in found.values()] == [True] * 6
    limits = [verdict.limit for verdict in found.values()]
    assert limits == pytest.approx([5.0, 5.0, 1.5, found["badput, %"].limit, 550.0, 120.0])  # a fifth of COBalD's 25 %


def test_fewer_than_ten_gpus_in_use_may_waste_ten_per_cent() -> None:
    few = judged([row("ours", good_h=239.0 * DAYS, waste=0.11)])["waste, %"]
    assert (few.limit, str(few)) == (10.0, "NOT met: 1.10 times the limit")


def test_what_was_not_run_is_not_judged() -> None:
    found = judged([row("ours"), row("cobald-pools", waste=0.4)])
    cobald = found["waste, %, to COBalD's better setting"]
    assert "the other setting was not run" in cobald.limit_is
    assert [verdict.met for verdict in judged([row("ours")]).values()].count(None) == 5
    (nothing,) = judged([row("karpenter")]).values()
    assert (nothing.met, nothing.limit_is) == (None, "no run of ours")


def test_where_a_queue_rules_the_karpenter_like_rules_wait_is_the_limit() -> None:
    rows = [row("ours", wait_mean_s=190.0), row("always-on"), row("karpenter", wait_mean_s=200.0)]
    verdict = judged(rows)["mean wait, s"]
    assert (verdict.limit, verdict.met) == (200.0, True)
    assert "120" in verdict.limit_is  # and what it would have been


def test_a_verdict_within_the_spread_of_the_seeds_says_so() -> None:
    verdict = judged([row("ours", 1, waste=0.04), row("ours", 2, waste=0.058)])["waste, %"]
    assert verdict.measured is not None and verdict.measured.told(1) == "4.9 ± 1.3"
    assert str(verdict) == "met, by less than the spread of the seeds"


def test_badput_is_compared_in_the_median_over_cases() -> None:
    rows = [
        row(rule, trace=trace, badput=badput)
        for trace, ours in (("6214e9", 0.01), ("b436b2+", 0.04), ("kit", 0.09))
        for rule, badput in (("ours", ours), ("karpenter", 0.1))
    ]
    overall = badput_ratio(cases_of(rows))
    assert overall.measured is not None
    assert overall.measured.mean == pytest.approx(0.4)
    assert overall.met


def test_of_a_run_in_two_directories_the_last_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, waste in (("first", 0.9), ("second", 0.04)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(json.dumps(asdict(row("ours", waste=waste, jobs_done=4))))
    rows = merged([tmp_path / "first", tmp_path / "second"])
    assert [r.waste for r in rows] == [0.04]
    table.show(rows, markdown=True)
    told = capsys.readouterr().out
    assert "| ours | 1 | 4.0 |" in told
    assert "1 jobs were not done" in told
    assert "| kit, owner vc8Sj | 0 |" in told  # what is still to be run
