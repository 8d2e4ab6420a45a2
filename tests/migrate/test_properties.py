"""Whatever is done to a configuration: no traceback, files that our strict reader takes, findings at real lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from provisioner.config.strict_yaml import YamlDocument, parse
from provisioner.migrate import ImportOutcome
from tests.migrate.examples import ALL, JDLS, read

_WORDS = """
~ 3 -1 0 1e400 .nan .inf 12:30:00 0x10 0b 0o7 1_000 2001-01-01 yes [] {} [[]] !x *none < ' | >- % @ `
"""
_PHRASES = (
    '{a: {b: [1]}} ; !x {a: 1} ; !!int x ; !!float y ; !!bool z ; !!null n ; !!binary x ; !!timestamp t ; &a [*a] ; "'
    " ; &b {<<: *b} ; x: y: z ; {__type__: 3} ; {__type__: a.ShellExecutor} ; {<<: 3}"
)
_CHARACTERS = (
    "",
    "- ",
    "? ",
    ": ",
    "\t",
    '"\\ud800"',
    '"\\0\\n"',
    '"</>: # ${x} $$"',
    "\u2028",
    "\xe9",
    "\U0001f642",
)
JUNK = [*_WORDS.split(), *_PHRASES.split(" ; "), *_CHARACTERS, "9" * 400]


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A configuration with a few of its lines dropped, doubled, shifted or cut, and values replaced."""
    lines = ALL[draw(st.sampled_from(sorted(ALL)))].splitlines()
    for _ in range(draw(st.integers(1, 4))):
        if not lines:
            break
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.integers(0, 6)):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[at])
            case 2:
                lines[at] = " " * draw(st.integers(0, 6)) + lines[at].lstrip()
            case 3:
                lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
            case 4:
                lines[at] = (
                    lines[at].partition(":")[0]
                    + ": "
                    + draw(st.sampled_from(JUNK) | st.text(max_size=8))
                )
            case 5:
                lines[at] = lines[at].replace(": ", ": " + draw(st.sampled_from(JUNK)) + " ", 1)
            case _:
                inner = lines[at].rsplit(": ", 1)
                lines[at] = f"{inner[0]}: {draw(st.sampled_from(JUNK))}" + (
                    "}" if lines[at].endswith("}") else ""
                )
    return "\n".join(lines)


def judge(text: str, jdls: dict[str, str]) -> None:
    made, problems = read(text, files=jdls)
    last = len(text.splitlines()) + 1
    assert (made is None) == bool(problems)
    for problem in problems:
        assert 1 <= problem.line <= last and problem.message.isprintable()
    if made is None:
        return
    assert next(iter(made.files)) == "provisioner.yaml"
    for name, content in made.files.items():
        document = YamlDocument(name)
        parse(content, document)
        assert document.problems == []
        content.encode("utf-8")
    for found in made.findings:
        lines = last if found.file == "tardis.yml" else len(jdls[found.file].splitlines()) + 1
        assert 1 <= found.line <= lines
        assert found.text.isprintable() and found.key.isprintable() and found.ours.isprintable()
        assert found.verdict is not ImportOutcome.NEEDED or found.text


@pytest.mark.parametrize("name", ALL)
def test_what_is_written_is_read_by_our_strict_reader(name: str) -> None:
    judge(ALL[name], JDLS)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(mangled())
def test_a_mangled_configuration_is_refused_or_converted_and_never_a_traceback(text: str) -> None:
    judge(text, JDLS)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(
        st.sampled_from(JUNK + JDLS["gpu.jdl"].splitlines()) | st.text(max_size=30), max_size=12
    )
)
def test_a_mangled_template_never_is(lines: list[str]) -> None:
    judge(ALL["htcondor"], JDLS | {"gpu.jdl": "\n".join(lines)})
