"""The option ``env`` of sites: variables of the GPU checks, and those that the site sets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticCustomError

from adapters.shared.parcel import FINDINGS, POLICY_VARIABLES, check_environment

ROOT = Path(__file__).parents[2]
RESERVED = re.compile("DRONE_.*", re.IGNORECASE)


@pytest.mark.parametrize(
    "env",
    [
        {
            "DRONE_XID_APPLICATION": "13,31, 43",
            "DRONE_XID_FATAL": "",
            "DRONE_XID_RESET": "94,other",
        },
        {"DRONE_GPU_IGNORE": "pcie,remap-pending", "DRONE_GPU_FATAL_S": "7200"},
        {"DRONE_KERNEL_LOG": "/var/log/gpu-messages.log", "ANYTHING": "else"},
        {name: example for name, (_, example) in POLICY_VARIABLES.items()},
    ],
)
def test_settings_of_the_gpu_checks_are_accepted(env: dict[str, str]) -> None:
    assert check_environment(env, reserved=RESERVED) == env


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "DRONE_XID_APLICATION",
            "13",
            "unknown variable `DRONE_XID_APLICATION`: did you mean `DRONE_XID_APPLICATION`?",
        ),
        ("drone_check_s", "60", "unknown variable `drone_check_s`: did you mean `DRONE_CHECK_S`?"),
        ("DRONE_ID", "x", "`DRONE_ID` is set by the site: remove it"),
        ("DRONE_GPU_MILLI", "500", "`DRONE_GPU_MILLI` is set by the site: remove it"),
        ("DRONE_CHECK_LIMIT_S", "5", "`DRONE_CHECK_LIMIT_S` is set by the site: remove it"),
        (
            "DRONE_GPU_FATAL_S",
            "2h",
            '`DRONE_GPU_FATAL_S` must be a whole number of seconds from 1: write `DRONE_GPU_FATAL_S: "86400"`',
        ),
        ("DRONE_CHECK_S", "0", "must be a whole number of seconds from 1"),
        ("DRONE_XID_FATAL", "79;95", "must be numbers of Xids with commas between them: write"),
        ("DRONE_XID_FATAL", "other", "must be numbers of Xids with commas between them: write"),
        ("DRONE_XID_RESET", "others", "or `other`: write"),
        ("DRONE_GPU_IGNORE", "pci", "findings with commas between them, of cuda, driver, ecc, "),
        ("DRONE_SYS", "sys", "must be an absolute path"),
    ],
)
def test_other_settings_name_the_remedy(name: str, value: str, said: str) -> None:
    with pytest.raises(PydanticCustomError) as error:
        check_environment({name: value}, reserved=RESERVED)
    assert said in str(error.value)


def test_variables_and_findings_are_those_of_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "drone.md").read_text()
    table = page[page.index("| finding | by | class |") :].partition("\n\n")[0]
    assert (
        set(re.findall(r"`([a-z-]+)`", "".join(row.split("|")[1] for row in table.splitlines())))
        == FINDINGS
    )
    variables = page[page.index("| `DRONE_XID_APPLICATION` | Xids") :].partition("\n\n")[0]
    named = re.findall(
        r"`(DRONE_\w+)`", "".join(row.split("|")[1] for row in variables.splitlines())
    )
    assert {*named, "DRONE_CHECK_S"} == POLICY_VARIABLES.keys()
