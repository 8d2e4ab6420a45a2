"""Options of sbatch and whole submissions in the words of slurmrestd and pyslurm."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from adapters.slurm import native, rest
from adapters.slurm.options import convert_options
from adapters.slurm.records import SlurmSubmission

Options = dict[str, str | bool]


@pytest.mark.parametrize(
    ("options", "of_rest", "of_pyslurm"),
    [
        ({"nice": True}, {"nice": 100}, {"nice": 100}),
        (
            {"exclude": "hkn[0801-0802,0805]"},
            {"excluded_nodes": ["hkn0801", "hkn0802", "hkn0805"]},
            {"excluded_nodes": "hkn[0801-0802,0805]"},
        ),
        ({"exclusive": True}, {"shared": ["none"]}, {"resource_sharing": "no"}),
        ({"priority": "1"}, {"priority": {"set": True, "number": 1}}, {"priority": 1}),
        (
            {"gres-flags": "disable-binding", "wckey": "k"},
            {"flags": ["GRES_BINDING_DISABLED"], "wckey": "k"},
            {"gres_binding": "disable-binding", "wckey": "k"},
        ),
    ],
)
def test_a_supported_option(
    options: Options, of_rest: dict[str, Any], of_pyslurm: dict[str, Any]
) -> None:
    assert convert_options(options, "rest") == (of_rest, {})
    assert convert_options(options, "native") == (of_pyslurm, {})


@pytest.mark.parametrize("transport", ["rest", "native"])
@pytest.mark.parametrize(
    "options", [{"nice": "very"}, {"exclusive": "sometimes"}, {"comment": True}, {"bb": "x"}]
)
def test_an_unsupported_option_or_value_is_named(
    options: Options, transport: Literal["rest", "native"]
) -> None:
    found, unsupported = convert_options({"account": "fine", **options}, transport)
    assert (found, list(unsupported)) == ({"account": "fine"}, list(options))
    assert all(f"does not support `{name}" in why for name, why in unsupported.items())


ASKED: Options = {"nice": "3", "partition": "p", "gres": "gpu:a100:1"}
SUBMISSION = SlurmSubmission(
    "c-b-0+.t.s",
    b"#!/bin/sh\n",
    (0, 1, 5),
    cpus=8,
    memory_mib=20480,
    minutes=90,
    notice_s=120,
    options=ASKED,
)


def test_a_submission_has_the_units_of_each_transport() -> None:
    of_rest, of_pyslurm = rest.job_description(SUBMISSION), native.job_description(SUBMISSION)
    same = {
        "name": "c-b-0+.t.s",
        "array": "0-1,5",
        "cpus_per_task": 8,
        "standard_output": "/dev/null",
        "nice": 3,
    }
    assert same.items() <= of_rest.items() and same.items() <= of_pyslurm.items()
    numbers = [
        of_rest[key]["number"] for key in ("memory_per_node", "time_limit", "kill_warning_delay")
    ]
    assert numbers == [20480, 90, 120]  # MiB, minutes, seconds
    assert (of_rest["kill_warning_flags"], of_rest["requeue"]) == (["BATCH_JOB"], False)
    assert (of_pyslurm["memory_per_node"], of_pyslurm["time_limit"]) == (20480, 90)
    assert of_pyslurm["signal"] == {"signal": 15, "time": 120, "batch_only": True}
    assert (of_pyslurm["environment"], of_pyslurm["is_requeueable"]) == (
        {"SLURM_EXPORT_ENV": "NIL"},
        False,
    )
