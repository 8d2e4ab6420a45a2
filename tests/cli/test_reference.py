"""The reference pages and schemas are current and complete."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from docs.make_reference import PAGES, write
from provisioner import reasons

DOCS = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_makes_it(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "renew it: python -m docs.make_reference"


def test_every_reason_is_explained() -> None:
    page = PAGES["reasons.md"]()
    for reason in get_args(reasons.Reason):
        assert f"### `{reason.__dataclass_fields__['kind'].default}`" in page


def test_pages_are_written_where_told(tmp_path: Path) -> None:
    write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(PAGES)
