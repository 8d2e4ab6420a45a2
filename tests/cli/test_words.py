"""Every reason, state and number has its words, and no foreign text reaches a terminal unfiltered."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from docs.make_reference import REASON_EXAMPLES
from provisioner import descriptions, formatting, reasons
from provisioner.descriptions import SHORTEST_CLASS_ID
from provisioner.model import DroneState

HOSTILE = "slot\x1b[31m\r\nrm -rf /\u202e\x07" + "x" * 100_000


def test_every_reason_has_an_example() -> None:
    assert [type(e) for e in REASON_EXAMPLES] == list(get_args(get_args(reasons.Reason)[0]))
    bases = reasons._Reason.__subclasses__()
    names = {one.__name__ for base in bases for one in base.__subclasses__()}
    assert names == {one.__name__ for one in get_args(get_args(reasons.Reason)[0])}
    kinds = [e.kind for e in REASON_EXAMPLES]
    assert kinds == [type(e).__dataclass_fields__["kind"].default for e in REASON_EXAMPLES]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("reason", REASON_EXAMPLES, ids=lambda r: r.kind)
def test_a_reason_is_told_in_one_line_with_all_it_knows(reason: reasons.Reason) -> None:
    line = reason.describe()
    assert line == formatting.sanitize(line) and "\n" not in line
    assert len(line) < 250
    assert isinstance(reason.category, reasons.Category)
    for field in fields(reason):
        value = getattr(reason, field.name)
        if field.name in ("kind", "rule") or isinstance(value, bool | float):
            continue  # these are worded: rules and conditions; ages, percentages, times
        value = reasons.IDLE_LIMIT_WORDS.get(value, value)
        told = formatting.amounts(str(value), "")[0]
        if field.name == "class_id":
            told = told[:SHORTEST_CLASS_ID]  # the name has it
        assert told in line, f"{field.name} of {reason.kind} is not told"


@pytest.mark.parametrize("reason", REASON_EXAMPLES, ids=lambda r: r.kind)
def test_hostile_text_in_a_reason_cannot_write_to_the_terminal(reason: reasons.Reason) -> None:
    texts = {f.name: HOSTILE for f in fields(reason) if f.type == "str"}
    line = replace(reason, **texts).describe()
    assert line.isprintable()
    assert len(line) < 200 * (len(texts) + 1) + 200


@pytest.mark.parametrize("reason", REASON_EXAMPLES, ids=lambda r: r.kind)
@pytest.mark.parametrize("value", [0.0, -1.0, 1e18, float("inf"), float("nan")])
def test_absurd_numbers_are_told_and_not_a_crash(reason: reasons.Reason, value: float) -> None:
    numbers: dict[str, Any] = {f.name: value for f in fields(reason) if f.type == "float"}
    assert replace(reason, **numbers).describe()


@pytest.mark.parametrize(
    ("duration_s", "told"),
    [
        (0.0, "0 s"),
        (45.4, "45 s"),
        (9600.0, "2 h 40 min"),
        (-725.0, "-12 min 5 s"),
        (273600.0, "3 d 4 h"),
        (1e9, "11574 d"),
    ],
)
def test_a_duration_is_written_out(duration_s: float, told: str) -> None:
    assert formatting.duration(duration_s) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "drone=kit-1 exit=0 reason=drained seconds=9 why=the%20pool's%20wish",
            "drained: the pool's wish",
        ),
        ("drone=kit-1 exit=0 reason=idle", "idle"),
        (
            "drone=kit-1 exit=71 reason=check-failed why=%1b[31m%0a%zz%",
            "check-failed: \ufffd[31m %zz%",
        ),
        (
            "kit-1 ended failed: drone=kit-1 exit=74 reason=lost why=no%20PATH",
            "kit-1 ended failed: lost: no PATH",
        ),
        ("drone=kit-1 is lost", "drone=kit-1 is lost"),
        ("", ""),
    ],
)
def test_the_last_words_of_a_drone_are_told_decoded(text: str, told: str) -> None:
    assert formatting.excerpt(text) == told
    assert (
        reasons.EndedAtSite("exited", 0, text, 61.0, 2)
        .describe()
        .endswith(f"2 jobs: {told}" if told else "2 jobs")
    )


def test_rounding_never_makes_a_comparison_a_lie() -> None:
    assert reasons.IdleTimeout(600.2, 600.0).describe() == "idle 600.200 s > 600.000 s"


def test_every_state_has_words() -> None:
    for state in DroneState:
        assert descriptions.STATE_WORDS[state].startswith(("ended", "lost")) is state.ended


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (725, "12m5s"),
        (273600, "3d4h"),
        (-61, "-1m1s"),
        (float("nan"), "-"),
    ],
)
def test_an_age_is_short(seconds: float, text: str) -> None:
    assert formatting.age(seconds) == text


@given(st.text())
def test_clean_text_is_one_printable_line(text: str) -> None:
    assert formatting.sanitize(text).isprintable()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["topas-a100-2", "topas-a100-1", "topas-a100-3"], "topas-a100-[1-3]"),
        (["n9", "n10", "n11", "n13"], "n9,n[10-11,13]"),
        (["n001", "n002", "n010", "n100", "n1"], "n1,n[001-002,010,100]"),
        (
            ["gpu1.example.org", "gpu2.example.org", "gpu1.example.com"],
            "gpu1.example.com,gpu[1-2].example.org",
        ),
        (["rack1-ib", "rack2-ib"], "rack[1-2]-ib"),
        (["head", "a[1-3]", "b,c1"], "a[1-3],b,c1,head"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.1,10.0.0.2"),
        ([], ""),
    ],
)
def test_names_that_differ_in_a_number_become_one(names: list[str], told: str) -> None:
    assert formatting.fold_hostlist(names) == told
