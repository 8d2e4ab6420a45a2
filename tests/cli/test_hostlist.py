"""Node names folded into a hostlist say exactly the names that went in."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.formatting import fold_hostlist


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["topas-a100-2", "topas-a100-1", "topas-a100-3"], "topas-a100-[1-3]"),
        (["topas-a100-1", "topas-v100-1"], "topas-a100-1,topas-v100-1"),
        (["n9", "n10", "n11", "n13"], "n[9-11,13]"),
        (["n1", "n2"], "n[1,2]"),
        (["n001", "n002", "n010", "n100", "n1"], "n1,n[001,002,010,100]"),
        (["gpu1.example.org", "gpu2.example.org", "gpu1.example.com"], "gpu1.example.com,gpu[1,2].example.org"),
        (["rack1-ib", "rack2-ib"], "rack[1,2]-ib"),
        (["node7", "node7"], "node7"),
        (["head", "a[1-3]", "b,c1"], "a[1-3],b,c1,head"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.1,10.0.0.2"),
        ([], ""),
    ],
)
def test_names_that_differ_in_a_number_become_one(names: list[str], told: str) -> None:
    assert fold_hostlist(names) == told


def unfolded(text: str) -> set[str]:
    """As pdsh reads a hostlist."""
    names: set[str] = set()
    for part in re.findall(r"[^,\[]*\[[^\]]*\][^,]*|[^,]+", text):
        bracket = re.fullmatch(r"(.*?)\[(.*)\](.*)", part)
        if bracket is None:
            names.add(part)
            continue
        before, inner, after = bracket.groups()
        for piece in inner.split(","):
            first, _, last = piece.partition("-")
            names |= {f"{before}{n:0{len(first)}d}{after}" for n in range(int(first), int(last or first) + 1)}
    return names


NAMES = st.from_regex(r"(a|b-)?[0-9]{0,3}(-x)?[0-9]{0,2}(\.k|\.[0-9]\.e)?", fullmatch=True).filter(bool)


@given(st.sets(NAMES, max_size=20))
def test_nothing_is_lost_and_nothing_added(names: set[str]) -> None:
    assert unfolded(fold_hostlist(names)) == names
