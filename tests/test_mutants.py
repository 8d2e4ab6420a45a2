"""The tool for mutation testing itself: its parts, what it leaves out, its choice of tests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.mutants import PARTS, ROOT, Copy, Touched, _meaning, drawn, modules_of


def test_each_module_of_planner_controller_and_store_is_in_one_part() -> None:
    count = Counter(
        str(module.relative_to(ROOT)) for part in PARTS.values() for module in modules_of(part)
    )
    assert set(count.values()) == {1}
    for directory in ("planner", "controller", "store"):
        for module in (ROOT / "provisioner" / directory).glob("*.py"):
            assert module.name == "__init__.py" or str(module.relative_to(ROOT)) in count
    for part in PARTS.values():
        assert all(
            (ROOT / "provisioner" / each.lstrip("!")).exists()
            for each in part.modules
            if "*" not in each
        )


@pytest.mark.parametrize(
    ("line", "tests"),
    [
        pytest.param(2, {"t.py::one", "t.py::two", "u.py::three"}, id="import"),
        pytest.param(5, {"t.py::one"}, id="header"),
        pytest.param(6, {"t.py::one"}, id="second-line-of-header"),
        pytest.param(7, {"t.py::one", "t.py::two"}, id="fixture"),
        pytest.param(9, set(), id="never-run"),
    ],
)
def test_the_tests_of_a_mistake_are_those_that_run_its_statement(
    line: int, tests: set[str]
) -> None:
    text = (
        "import a\nB = 1\n\ndef f():\n    if (a and\n            B):\n        return 1\n    "
        "else:\n        return 2\n"
    )
    lines = {"2": [""], "5": ["t.py::one"], "7": ["t.py"]}
    touched = Touched({"t.py::one": 0.1, "t.py::two": 0.1, "u.py::three": 0.1}, {"m.py": lines})
    assert set(touched.tests("m.py", text, line)) == tests


def test_a_sample_is_drawn_alike_each_time_one_mistake_a_line() -> None:
    pytest.importorskip("cosmic_ray", reason="only with the extra `mutants`")
    once, again = (list(drawn(PARTS["limits"], 8, seed=3)) for _ in range(2))
    assert once == again and len(once) == 8
    assert len({(mutant.module, mutant.line) for mutant, _ in once}) == 8
    for mutant, text in once:
        assert _meaning(text) != _meaning((ROOT / "provisioner" / mutant.module).read_text())


def test_a_mistake_that_no_test_sees_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a small tree of its own: the tests see a module that doubles, and not what its second function does."""
    monkeypatch.setattr("benchmarks.mutants.KEPT", tmp_path / "kept")
    monkeypatch.setattr("benchmarks.mutants.ROOT", tmp_path)
    monkeypatch.setattr("benchmarks.mutants.COPIED", ("provisioner", "tests"))
    (tmp_path / "provisioner").mkdir()
    (tmp_path / "tests").mkdir()
    sound = "def twice(n):\n    return 2 * n\n\ndef unseen():\n    return 1\n"
    (tmp_path / "provisioner" / "__init__.py").touch()
    (tmp_path / "provisioner" / "sums.py").write_text(sound)
    (tmp_path / "tests" / "test_sums.py").write_text(
        "from provisioner.sums import twice\ndef test_twice():\n    assert twice(2) == 4\n"
    )
    copy = Copy()
    tests = ["tests/test_sums.py"]
    texts = (sound, sound.replace("2 * n", "2 + n + 1"), sound.replace("return 1", "return 2"))
    assert [copy.outcome("sums.py", each, tests, 60.0) for each in texts] == [
        "survived",
        "killed",
        "survived",
    ]
    assert copy.outcome("sums.py", "while True: ...\n", tests, 5.0) == "timeout"
    assert (copy.place / "provisioner" / "sums.py").read_text() == sound
