"""The page of accounting: a month with a chart."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from provisioner.answers.errors import VerbError
from provisioner.store.reader import Reader
from tests.accounting.november import DAY, NOVEMBER, write_november
from tests.web.test_pages import Rendered


def test_a_month_has_a_chart_by_day_and_a_row_for_each_vo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.db"
    write_november(path)
    monkeypatch.setattr(time, "time", lambda: NOVEMBER + 20 * DAY)
    page = Rendered(Reader(path), "/accounting")
    assert "20 GPU-hours in 2026-11, not final." in page.text
    assert [row[0] for row in page.rows("GPU-hours of jobs")[1:]] == ["cms", "atlas", "lhcb"]
    figures = page.rows("GPU-hours in 2026-11")
    assert len(figures) == 31 and any("14" in row for row in figures)
    empty = Rendered(Reader(path), "/accounting?month=2026-10&by=site")
    assert "0 GPU-hours in 2026-10" in empty.text
    with pytest.raises(VerbError, match="month"):
        Rendered(Reader(path), "/accounting?month=2020-01")
