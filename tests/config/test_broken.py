"""Broken configurations, kept in ``broken/``: each mistake is told at its line with a repair, and nothing else is told.

What is expected stands in the file as ``# expect: LINE: fragment of the message``, or beside it in ``FILE.expect``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioner.config import ConfigError, Problem, check, load

BROKEN = Path(__file__).parent / "broken"
CASES = sorted([*BROKEN.glob("*.yaml"), *BROKEN.glob("*/provisioner.yaml")])
EXPECT = re.compile(r"^# expect: (\d+): (.+)$", re.MULTILINE)


def expected(case: Path) -> list[tuple[str, int, str]]:
    """File, line and fragment of each problem that ``case`` has, in order."""
    others = [] if case.parent == BROKEN else sorted(path for path in case.parent.rglob("*") if path != case)
    told: list[tuple[str, int, str]] = []
    for file in [case, *others]:
        beside = file.with_name(file.name + ".expect")
        source = beside if beside.exists() else file
        if source.is_file() and file.suffix != ".expect":
            told += [(str(file), int(line), fragment) for line, fragment in EXPECT.findall(source.read_text())]
    return told


@pytest.mark.parametrize("case", CASES, ids=lambda path: str(path.relative_to(BROKEN)))
def test_every_mistake_is_told_at_its_line_with_its_repair(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BROKEN.parent)
    problems = check(case)

    wanted = expected(case)
    assert wanted, f"{case} says not what is expected of it"
    assert [(p.file, p.line) for p in problems] == [(file, line) for file, line, _ in wanted], shown(problems)
    for problem, (_, _, fragment) in zip(problems, wanted, strict=True):
        assert fragment.replace("broken/", f"{BROKEN}/") in problem.message, shown(problems)
        assert problem.col >= 1
        assert "\n" not in str(problem)


@pytest.mark.parametrize("case", CASES, ids=lambda path: str(path.relative_to(BROKEN)))
def test_a_broken_configuration_is_never_loaded(case: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(case)

    assert raised.value.problems
    assert str(raised.value).count("\n") == len(raised.value.problems) - 1


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 90


def shown(problems: list[Problem]) -> str:
    return "told:\n" + "\n".join(map(str, problems))
