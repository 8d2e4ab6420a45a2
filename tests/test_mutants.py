"""The tool for mutation testing itself: its parts, what it leaves out, its choice of tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.mutants import PARTS, ROOT, SLOW, Copy, Touched, _files, _meaning, _nearest_first, drawn, modules_of


def test_each_module_of_planner_controller_and_store_is_in_one_part() -> None:
    count = Counter(str(module.relative_to(ROOT)) for part in PARTS.values() for module in modules_of(part))
    assert set(count.values()) == {1}
    for directory in ("planner", "controller", "store"):
        for module in (ROOT / "provisioner" / directory).glob("*.py"):
            assert module.name == "__init__.py" or str(module.relative_to(ROOT)) in count
    for part in PARTS.values():
        assert all((ROOT / "provisioner" / each.lstrip("!")).exists() for each in part.modules if "*" not in each)


def test_annotations_mean_nothing() -> None:
    assert _meaning("def f(a: int | None) -> int: ...") == _meaning("def f(a: int + None) -> str: ...")
    assert _meaning("a: int | None = 1") == _meaning("a: int * None = 1") != _meaning("a: int | None = 2")


def test_the_tests_of_a_module_run_first_long_ones_last_and_slow_ones_never() -> None:
    files = _files(ROOT, ("tests/planner", "tests/config"))
    assert not SLOW & {file.rpartition("/")[2] for file in files}
    assert {file.rpartition("/")[0] for file in files} == {"tests/planner", "tests/config"}
    assert _nearest_first(ROOT, dict.fromkeys(files, 0.1), "config/units.py")[0] == "tests/config/test_units.py"
    long = dict.fromkeys(files, 0.1) | {"tests/config/test_units.py": 3.0}
    assert _nearest_first(ROOT, long, "config/units.py")[-1] == "tests/config/test_units.py"


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
def test_the_tests_of_a_mistake_are_those_that_run_its_statement(line: int, tests: set[str]) -> None:
    text = (
        "import a\nB = 1\n\ndef f():\n    if (a and\n            B):\n        return 1\n    else:\n        return 2\n"
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


def test_a_mistake_that_no_test_sees_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert [copy.outcome("sums.py", each, tests, 60.0) for each in texts] == ["survived", "killed", "survived"]
    assert copy.outcome("sums.py", "while True: ...\n", tests, 5.0) == "timeout"
    assert (copy.place / "provisioner" / "sums.py").read_text() == sound


def test_it_is_written_down_which_tests_run_a_line(tmp_path: Path) -> None:
    pytest.importorskip("coverage", reason="only with the extra `mutants`")
    (tmp_path / "provisioner").mkdir()
    (tmp_path / "provisioner" / "sums.py").write_text("def twice(n):\n    return 2 * n\n\ndef one():\n    return 1\n")
    (tmp_path / "provisioner" / "__init__.py").touch()
    (tmp_path / "test_sums.py").write_text(
        "import pytest\nfrom provisioner.sums import one, twice\n"
        "@pytest.fixture\ndef n(): return one()\n"
        "@pytest.mark.parametrize('m', [2, 3])\ndef test_twice(n, m): assert twice(m) == 2 * m\n"
        "def test_none(): pass\n"
    )
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.touched", "--touched", "touched.json"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    subprocess.run([*command, "test_sums.py"], cwd=tmp_path, env=env, check=True, timeout=100)
    touched = json.loads((tmp_path / "touched.json").read_text())
    assert set(touched["seconds"]) == {"test_sums.py::test_twice", "test_sums.py::test_none"}
    lines = touched["lines"]["sums.py"]
    assert lines["1"] == [""] and lines["2"] == ["test_sums.py::test_twice"] and lines["5"] == ["test_sums.py"]
