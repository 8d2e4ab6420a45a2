"""Lists of nodes in Slurm's notation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.slurm.records import expand_hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("hkn0801", ("hkn0801",)),
        ("hkn[0801-0803,0901],login1", ("hkn0801", "hkn0802", "hkn0803", "hkn0901", "login1")),
        ("rack[1-2]n[01-02]", ("rack1n01", "rack1n02", "rack2n01", "rack2n02")),
        ("n[1-2]-ib", ("n1-ib", "n2-ib")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("n[99-101]", ("n99", "n100", "n101")),
        ("n[7]", ("n7",)),
        ("a.example.org,b.example.org", ("a.example.org", "b.example.org")),
        ("", ()),
        ("(null)", ()),
        ("None assigned", ()),
    ],
)
def test_a_list_is_written_out_in_its_order(text: str, names: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    "text",
    [
        *("n[1-2", "n1-2]", "n[[1-2]]", "n[]", "n[2-1]", "n[a-b]", "n[1-2-3]", "n1,,n2", ",", "n 1", "n1;reboot"),
        *("$(reboot)", "n[1,]", "n[-3]"),
    ],
)
def test_an_invalid_list_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"node|brackets|name"):
        expand_hostlist(text)


@pytest.mark.parametrize("text", ["n[1-99999999999999]", "a[1-999]b[1-999]c[1-999]", ",".join(["n[1-60000]"] * 2)])
def test_a_short_text_that_means_too_many_nodes_is_refused_before_it_is_written_out(text: str) -> None:
    with pytest.raises(ValueError, match="than there can be"):
        expand_hostlist(text)


def test_the_limit_is_of_names() -> None:
    assert len(expand_hostlist("n[1-4]", limit=4)) == 4
    with pytest.raises(ValueError, match="than there can be"):
        expand_hostlist("n[1-4],m", limit=4)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=30), st.integers(1, 6))
def test_numbers_keep_their_leading_zeros(numbers: list[int], width: int) -> None:
    text = "n[" + ",".join(f"{n:0{width}d}" for n in numbers) + "]"
    assert expand_hostlist(text) == tuple(f"n{n:0{width}d}" for n in numbers)


@given(st.text(max_size=60))
def test_any_text_is_either_a_list_or_refused(text: str) -> None:
    try:
        names = expand_hostlist(text, limit=1000)
    except ValueError:
        return
    assert len(names) <= 1000 and all(name.isprintable() and " " not in name for name in names)
