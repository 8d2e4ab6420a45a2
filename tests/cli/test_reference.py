"""The reference pages are current, and tell of everything."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from provisioner import reasons
from provisioner.cli.reference import PAGES, main

DOCS = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_makes_it(name: str) -> None:
    renew = f"renew it: python -m provisioner.cli.reference --write docs/reference/{name}"
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), renew


def test_every_reason_is_explained() -> None:
    page = PAGES["reasons.md"]()
    for reason in get_args(reasons.Reason):
        assert f"### `{reason.__dataclass_fields__['kind'].default}`" in page


def test_pages_are_written_where_told(tmp_path: Path) -> None:
    assert main(["--write", str(tmp_path / "reasons.md")]) == 0
    assert (tmp_path / "reasons.md").read_text(encoding="utf-8") == PAGES["reasons.md"]()
    assert main(["--write", str(tmp_path / "nothing.md")]) == 2
