"""YAML without surprises: plain values and their places, whatever the file holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.config import Problem, strict_yaml
from provisioner.config.strict_yaml import Position, YamlDocument

AMBIGUOUS = """
yes Yes NO on Off y N True FALSE null ~ 12:30 1:2:3 0755 -017 0x1F 0o17 0b1 1_000 .5 5. .inf -.INF .nan 2026-11-21
"""


def parsed(text: str) -> YamlDocument:
    document = YamlDocument("f.yaml")
    strict_yaml.parse(text, document)
    return document


def test_values_and_places() -> None:
    document = parsed('a: 1\nb:\n  - x\n  - {c: "12:30", d: 8.0}\ne: true\n')
    assert document.tree == {"a": 1, "b": ["x", {"c": "12:30", "d": 8.0}], "e": True}
    assert document.problems == []
    assert document.value_position(("b", 1, "c")) == Position(4, 9)
    assert document.key_position(("b", 1, "d")) == Position(4, 18)
    assert document.value_position(("b", 1, "nothing")) == Position(4, 5)


@pytest.mark.parametrize(
    "text", ["8.0.1", "1.2.3.4", "20 GiB", "2h30m", "a:b", "v1", "e5", "1e", "007bond"]
)
def test_what_only_looks_like_a_number_is_text(text: str) -> None:
    assert parsed(f"a: {text}").tree == {"a": text}


@pytest.mark.parametrize("text", AMBIGUOUS.split())
def test_what_readers_disagree_on_is_refused_plain_and_taken_in_quotes(text: str) -> None:
    plain, quoted = parsed(f"a: {text}"), parsed(f'a: "{text}"')
    assert [p.line for p in plain.problems] == [1]
    assert "write" in plain.problems[0].message
    assert (quoted.problems, quoted.tree) == ([], {"a": text})


def test_anchors_aliases_and_merges_are_understood() -> None:
    document = parsed("a: &a {x: 1, z: 2}\nb: *a\nc:\n  <<: *a\n  z: 3\n")
    assert document.tree == {"a": {"x": 1, "z": 2}, "b": {"x": 1, "z": 2}, "c": {"z": 3, "x": 1}}
    assert document.key_position(("c", "x")) == Position(1, 8)  # it stands where it was written


@pytest.mark.parametrize("levels", [60, 200, 330, 400, 500, 50_000])
@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ("{a: ", "}"), ("- ", "")])
def test_deep_nesting_is_refused_and_never_overflows_the_stack(
    levels: int, opens: str, closes: str
) -> None:
    before = "a:\n  " if opens == "- " else "a: "
    assert (
        "nested too deeply"
        in parsed(before + opens * levels + "1" + closes * levels).problems[0].message
    )


@pytest.mark.parametrize(("levels", "refused"), [(48, False), (49, True)])
def test_nesting_is_refused_beyond_fifty_levels_with_the_file_and_the_value(
    levels: int, refused: bool
) -> None:
    assert bool(parsed("a: " + "[" * levels + "1" + "]" * levels).problems) is refused
    chain = "".join(f"a{n}: &a{n} [{f'*a{n - 1}' if n else 'x'}]\n" for n in range(levels + 1))
    assert bool(parsed(chain).problems) is refused


def test_a_chain_of_aliases_is_nested_as_deeply_as_it_is_long() -> None:
    chain = "".join(f"a{n}: &a{n} [{f'*a{n - 1}' if n else 'x'}]\n" for n in range(2000))
    assert "nested too deeply" in parsed(chain).problems[0].message


def test_merges_of_merges_are_counted_and_refused() -> None:
    """A file of 500 bytes kept the reader busy for ever."""
    levels = (f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12))
    merges = "a0: &a0 {x: 1}\n" + "".join(levels)
    assert "too large" in parsed(merges).problems[0].message
    chain = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, 500))
    assert "nested too deeply" in parsed(chain).problems[0].message
    assert parsed("a: {<<: &m {<<: *m}}").problems[0].message


def test_a_file_has_a_bounded_number_of_values_and_of_problems() -> None:
    assert "too large" in parsed("".join(f"k{n}: 1\n" for n in range(350_000))).problems[0].message
    thousand, rest = f"a: &a [{', '.join('1' * 999)}]\nb: [{'*a, ' * 48}", ", ".join("1" * 998)
    assert parsed(f"{thousand}{rest}]").problems == [], "50,000 with the lists and the file"
    (problem,) = parsed(f"{thousand}1, {rest}]").problems
    assert (problem.line, problem.col) == (1, 1) and "more than 50000 values" in problem.message
    many = parsed("".join(f"k{n}: yes\n" for n in range(500))).problems
    assert len(many) == 101 and "more than 100 problems" in many[-1].message


def test_an_escape_that_is_no_character_is_a_problem_of_its_own() -> None:
    (problem,) = parsed('a: "\\ud800"').problems
    assert problem.line == 1 and "not a character" in problem.message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "is a directory: name the file in it"),
    ):
        assert strict_yaml.read(path).problems == [Problem(str(path), 1, 1, words)]
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    told = "cannot be read: Too many levels of symbolic links"
    assert strict_yaml.read(loop).problems == [Problem(str(loop), 1, 1, told)]
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: 1\nb: schön\n".encode("latin-1"))
    told = "byte 0xf6 is not UTF-8: save the file as UTF-8"
    assert strict_yaml.read(latin).problems == [Problem(str(latin), 2, 7, told)]
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    assert "larger than 4 MiB" in strict_yaml.read(big).problems[0].message
    big.write_bytes(b"a: 1\n" + b"#" * (4 * 1024 * 1024 - 5))
    assert strict_yaml.text_of(big, YamlDocument("big")) is not None


@pytest.mark.parametrize(
    ("text", "spot", "words"),
    [
        ("a: 1\n? [b]\n: 1\n", (2, 3), "expected a key"),
        ("a:\n  12: 1\n", (2, 3), 'write `"12"`'),
        ("a: 1\nb:\n  <<: 3\n", (3, 7), "needs a mapping"),
        ("a: &a [1, *a]", (1, 4), "recursive alias"),
        ("a: 1\nb: [0, 12:30]\n", (2, 8), "write `12h30m`"),
        ("a: -0017\n", (1, 4), "write `17`"),
        ("a: 1234567890123456789\n", (1, 4), "too many digits"),
    ],
)
def test_a_mistake_is_told_at_its_line_and_column(
    text: str, spot: tuple[int, int], words: str
) -> None:
    (problem,) = parsed(text).problems
    assert (problem.line, problem.col) == spot, problem
    assert words in problem.message
