"""What an operator writes about an HTCondor site: what passes, and how the rest is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from tests.htcondor_site.orders import A100, CPU, config


def refused(**options: object) -> str:
    with pytest.raises(ValidationError) as found:
        config(**options)
    [error] = found.value.errors()
    return str(error["msg"])


def test_what_is_harmless_passes() -> None:
    commands = {
        "+IsBackfill": "True",
        "My.Project": '"grid"',
        "accounting_group": "group_backfill",
        "universe": "grid",
        "grid_resource": "condor ce.example.org ce.example.org:9619",
        "requirements": 'TARGET.GpuClass == "a100"',
        "some_command_of_next_year": "a b",
        "rank": "$(kflops) 1",
        "+Attempt": "$$([1 2])",
    }
    assert config(submit=commands, types={"a100": {"submit": {"rank": "1"}}}).submit == commands


OURS = "queue Request_CPUs +RequestMemory My.DroneId executable environment inputs if include +NumJobStarts"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *((name, "1", (f"`{name}`", "remove it")) for name in OURS.split()),
        *(
            (name, "1 2", ("`1 2` is not a ClassAd expression",))
            for name in ("require_gpus", "rank", "My.Project")
        ),
    ],
)
def test_what_is_ours_or_no_expression_is_refused_for_the_site_and_for_a_type(
    name: str, value: str, words: tuple[str, ...]
) -> None:
    for options in ({"submit": {name: value}}, {"types": {"a100": {"submit": {name: value}}}}):
        message = refused(**options)
        assert all(word in message for word in words)


def test_options_for_a_type_that_is_not_there_and_shares_of_gpus_do_not_fit() -> None:
    options = config(types={"v100x": {"submit": {"rank": "1"}}, "a100": {}})
    half = replace(A100, name="half", gpu_milli=500)
    assert list(options.type_conflicts([A100, CPU])) == [
        (("options", "types", "v100x"), "there is no drone type `v100x`: did you mean `a100`?")
    ]
    assert list(config().type_conflicts([A100, CPU, half])) == [
        (
            ("types", "half", "gpus"),
            "`gpus`: a share of a GPU is a whole one to an HTCondor site: write `gpus: 1`",
        )
    ]


def test_what_import_left_open_is_refused_each_at_its_place() -> None:
    with pytest.raises(ValidationError) as found:
        config(
            submit={"rank": "1", "accounting_group": "<the group>", "+X": "<X without $Y>"},
            env={"A": "<A b>"},
        )
    places = [("submit", "accounting_group"), ("submit", "+X"), ("env", "A")]
    assert [error["loc"] for error in found.value.errors()] == places
    assert all("still to be filled in" in str(error["msg"]) for error in found.value.errors())
    assert config(env={"A": "<10.0.0.1:9618>"}).env == {"A": "<10.0.0.1:9618>"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(
            ({"submit": {"rank": value}}, "on one line")
            for value in (" ", "a\nqueue 5", "a \\", "\x00")
        ),
        *(
            ({"submit": {name: "1"}}, "not a submit command")
            for name in ("queue 5\nrank", "a=b", "$(x)", "")
        ),
        *(({"env": {name: "1"}}, "remove it") for name in ("DRONE_DIR", "_CONDOR_X")),
        ({"env": {"A": "$$(x)"}}, "begins a macro"),
        ({"submit": {"+IsBackfill": "True", "My.isbackfill": "False"}}, "the same"),
        ({"types": {"a100": {"requirements": "1 2"}}}, "`TARGET.Memory > 4096`"),
        ({"owner": {"jobs": "true"}}, "no queue is named: write `schedds: [name]`"),
        ({"collector": "condor.example.org"}, "write `condor.example.org:9618`"),
        ({"lease": "19s"}, "greater than or equal"),
        ({"token": None}, "`token` or `token_directory` is wanted"),
        ({"tools": {"path": "/opt/bin"}}, "write `transport: tools`"),
        (
            {"transport": "tools", "tools": {"ssh": {"host": "h", "user": "u", "agent": True}}},
            "has its own tokens",
        ),
    ],
)
def test_a_mistake_is_refused_with_its_repair(options: dict[str, object], words: str) -> None:
    assert words in refused(**options)
