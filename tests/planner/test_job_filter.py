"""Rules on the jobs that a drone takes: their text, and what they refuse."""

from __future__ import annotations

import pytest

from provisioner.job_filter import FILTER_WORDS, TAKES_ALL, JobFilter
from tests.planner.scenes import jobs

ALL_RULES = JobFilter(("anna", "ben@site"), 2, 90, 4, 30_000)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (TAKES_ALL, ""),
        (JobFilter(("anna",)), "excluded_users=anna"),
        (JobFilter(min_gpus=2), "min_gpus=2"),
        (
            ALL_RULES,
            "excluded_users=anna,ben@site min_gpus=2 first_s=90 first_gpus=4 first_vram_mib=30000",
        ),
    ],
)
def test_rules_are_written_as_text_and_read_back(rules: JobFilter, text: str) -> None:
    assert str(rules) == text and JobFilter.parse(text) == rules


@pytest.mark.parametrize("text", ["min_gpus", "min_gpus=two", "colour=red"])
def test_a_text_that_holds_no_rules_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        JobFilter.parse(text)


@pytest.mark.parametrize(
    ("job", "later", "at_first"),
    [
        ({"owner": "carl", "gpu_milli": 4000, "vram_mib": 30_000}, "", ""),
        ({"owner": "ben@site", "gpu_milli": 4000}, "excluded_users", "excluded_users"),
        ({"owner": "ben", "gpu_milli": 1000}, "min_gpus", "min_gpus"),
        ({"owner": "ben", "gpu_milli": 3000, "vram_mib": 40_000}, "", "first_jobs"),
        ({"owner": "ben", "gpu_milli": 4000, "vram_mib": 20_000}, "", "first_jobs"),
    ],
)
def test_a_job_is_refused_by_a_rule_that_has_words(
    job: dict[str, object], later: str, at_first: str
) -> None:
    waits = jobs(**job)
    assert ALL_RULES.refuses(waits, at_first=True) == at_first
    assert ALL_RULES.refuses(waits) == ALL_RULES.lasting.refuses(waits, at_first=True) == later
    assert {later, at_first} <= {"", *FILTER_WORDS}
