"""Options of sbatch as fields of slurmrestd's job description."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.slurm.options import UnsupportedOptionError, convert_options, unsupported_options
from adapters.slurm.records import SlurmSubmission
from adapters.slurm.rest import job_description


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nice": True}, {"nice": 100}),
        ({"nice": "-5"}, {"nice": -5}),
        ({"exclude": "hkn[0801-0802,0805]"}, {"excluded_nodes": ["hkn0801", "hkn0802", "hkn0805"]}),
        ({"nodelist": "hkn0901"}, {"required_nodes": ["hkn0901"]}),
        ({"exclusive": True}, {"shared": ["none"]}),
        ({"exclusive": "user"}, {"shared": ["user"]}),
        ({"mail-type": "END,TIME_LIMIT_80"}, {"mail_type": ["END", "TIME=80%"]}),
        ({"mail-type": "NONE"}, {"mail_type": []}),
        ({"switches": "1"}, {"required_switches": {"set": True, "number": 1}}),
        (
            {"gres-flags": "disable-binding", "spread-job": True, "wckey": "k"},
            {"flags": ["GRES_BINDING_DISABLED", "SPREAD_JOB"], "wckey": "k"},
        ),
    ],
)
def test_a_supported_option(options: dict[str, str | bool], said: dict[str, Any]) -> None:
    assert convert_options(options, "rest") == said
    assert not unsupported_options(options, "rest")


@pytest.mark.parametrize(
    "options",
    [
        {"gpu-bind": "closest"},
        {"nice": "very"},
        {"exclude": "hkn[0801-"},
        {"exclusive": "sometimes"},
        {"comment": True},
        {"contiguous": "yes"},
        {"switches": "1@10:00"},
        {"mail-type": "PIGEON"},
    ],
)
def test_an_unsupported_option_or_value_is_named(options: dict[str, str | bool]) -> None:
    beside = {"comment": "fine", **options} if "comment" not in options else options
    assert list(unsupported_options(beside, "rest")) == list(options)
    with pytest.raises(UnsupportedOptionError, match=f"`{next(iter(options))}"):
        convert_options(options, "rest")


def test_configured_options_do_not_redefine_a_drone() -> None:
    job = job_description(
        SlurmSubmission(
            "c-b-0+.t.s",
            b"",
            tasks=(0, 1, 5),
            cpus=8,
            memory_mib=20480,
            minutes=90,
            notice_s=120,
            options={"nice": "3", "spread-job": True, "partition": "p", "gres": "gpu:a100:1"},
        )
    )

    assert job == {
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
        "flags": ["SPREAD_JOB"],
    }
