"""A list as CSV is text for spreadsheets, whatever users put into names."""

from __future__ import annotations

import csv
import io

import pytest

from provisioner.answers import columns as out, forms
from provisioner.answers.query import Format, Query


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\t=", "\r+", "\uff1d"])
def test_a_name_is_no_formula(start: str) -> None:
    columns = [out.ident("id", "Id.", str), out.number("n", "Number.", lambda name: -1.5, level=0)]
    name = f"{start}HYPERLINK(1)"
    written = io.StringIO()
    forms.write(
        out.Listing("", columns, [name, "plain-name"]),
        Query(output=Format.CSV),
        forms.Page(None, False),
        written,
    )
    header, first, second = csv.reader(io.StringIO(written.getvalue()))
    assert header == ["id", "n"] and second == ["plain-name", "-1.5"]
    assert first[0].startswith("'") and first[0].endswith("HYPERLINK(1)") and first[1] == "-1.5"
