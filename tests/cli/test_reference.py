"""The reference pages and schemas are current and complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.make_reference import PAGES

DOCS = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_makes_it(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "renew it: python -m docs.make_reference"
