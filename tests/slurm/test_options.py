"""Options of sbatch and whole submissions in the words of slurmrestd and pyslurm."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from adapters.slurm import native_worker, rest
from adapters.slurm.options import UnsupportedOptionError, convert_options, unsupported_options
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
def test_a_supported_option(options: Options, of_rest: dict[str, Any], of_pyslurm: dict[str, Any]) -> None:
    assert convert_options(options, "rest") == of_rest
    assert convert_options(options, "native") == of_pyslurm
    assert not unsupported_options(options, "rest") and not unsupported_options(options, "native")


@pytest.mark.parametrize("transport", ["rest", "native"])
@pytest.mark.parametrize(
    "options",
    [
        *({"nice": "very"}, {"exclusive": "sometimes"}, {"comment": True}, {"bb": "x"}),
    ],
)
def test_an_unsupported_option_or_value_is_named(options: Options, transport: Literal["rest", "native"]) -> None:
    assert list(unsupported_options({"account": "fine", **options}, transport)) == list(options)
    with pytest.raises(UnsupportedOptionError, match=f"`{next(iter(options))}"):
        convert_options(options, transport)


def test_what_only_one_transport_supports() -> None:
    assert list(unsupported_options({"exclude": "hkn[0801-"}, "rest")) == ["exclude"]
    assert list(unsupported_options({"prefer": "x"}, "native")) == ["prefer"]
    assert list(unsupported_options({"exclusive": True, "oversubscribe": True}, "native")) == ["oversubscribe"]


SUBMISSION = SlurmSubmission(
    "c-b-0+.t.s",
    b"#!/bin/sh\n",
    tasks=(0, 1, 5),
    cpus=8,
    memory_mib=20480,
    minutes=90,
    notice_s=120,
    options={"nice": "3", "partition": "p", "gres": "gpu:a100:1"},
)


def test_a_submission_to_slurmrestd() -> None:
    assert rest.job_description(SUBMISSION) == {
        "name": "c-b-0+.t.s",
        "array": "0-1,5",
        "partition": "p",
        "tres_per_node": "gres/gpu:a100:1",
        "tasks": 1,
        "minimum_nodes": 1,
        "maximum_nodes": 1,
        "cpus_per_task": 8,
        "memory_per_node": {"set": True, "number": 20480},
        "time_limit": {"set": True, "number": 90},
        "kill_warning_signal": "TERM",
        "kill_warning_delay": {"set": True, "number": 120},
        "kill_warning_flags": ["BATCH_JOB"],
        "requeue": False,
        "standard_output": "/dev/null",
        "current_working_directory": "/",
        "environment": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"],
        "nice": 3,
    }


def test_a_submission_to_pyslurm() -> None:
    assert native_worker.job_description(SUBMISSION) == {
        "name": "c-b-0+.t.s",
        "script": "#!/bin/sh\n",
        "array": "0-1,5",
        "partitions": "p",
        "gres_per_node": "gpu:a100:1",
        "nodes": 1,
        "ntasks": 1,
        "cpus_per_task": 8,
        "memory_per_node": 20480,  # MiB
        "time_limit": 90,  # minutes
        "signal": {"signal": 15, "time": 120, "batch_only": True},
        "is_requeueable": False,
        "standard_output": "/dev/null",
        "working_directory": "/",
        "environment": {"SLURM_EXPORT_ENV": "NIL"},
        "profile_types": "none",
        "nice": 3,
    }
