"""Places of the host that test runs beside each other share."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.conftest import Place


def test_a_third_worker_waits_until_one_of_two_leaves(tmp_path: Path) -> None:
    first, second, third = (Place(tmp_path, 2) for _ in range(3))
    first.take()
    second.take()
    waiting = threading.Thread(target=third.take, daemon=True)
    waiting.start()
    waiting.join(1)
    assert third.file is None
    second.leave()
    waiting.join(60)
    assert third.file is not None
    for place in (first, third):
        place.leave()


def test_a_run_without_workers_needs_no_place(tmp_path: Path) -> None:
    alone = Place(tmp_path, 0)
    alone.take()
    assert alone.file is None
