"""The submit files for users are complete and can be parsed; ``tests/live`` submits them."""

from __future__ import annotations

import htcondor2
import pytest

from tests.users_page import NEEDS, SUBMIT_FILES


def test_the_page_says_of_each_submit_file_what_it_asks_for() -> None:
    assert len(SUBMIT_FILES) == 6
    assert list(NEEDS) == list(SUBMIT_FILES)


@pytest.mark.parametrize("name", SUBMIT_FILES)
def test_a_submit_file_is_complete(name: str) -> None:
    parsed = htcondor2.Submit(SUBMIT_FILES[name])
    assert parsed["executable"]
    assert {"request_gpus", "request_cpus", "request_memory", "request_disk"} <= set(parsed)
    assert SUBMIT_FILES[name].splitlines()[-1].split()[0] == "queue"
    assert parsed.getQArgs() == ("4" if name == "share.sub" else "")
