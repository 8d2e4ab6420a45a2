"""Mutation testing: one small mistake at a time is put into a copy of the code, and the tests should notice it.

    python -m benchmarks.mutants [--part PART]... [--sample N] [--seed S] [--survivors] [--report] [--workers N]

The mistakes are those of cosmic-ray's operators. Only the tests that run the changed statement are tried, the nearest
first and the slow ones last, until one fails. Results are kept under ``var/mutants`` by the contents of the module,
so that a run which is broken off goes on, and a changed module is tried anew. Runs at the lowest priority.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "var" / "mutants"
COPIED = (
    "provisioner",
    "adapters",
    "tests",
    "benchmarks",
    "site_configs",
    "docs",
    "pyproject.toml",
)


@dataclass(frozen=True, slots=True)
class Part:
    """Modules that belong together, and the quick tests that should notice mistakes in them."""

    modules: tuple[str, ...]
    """Patterns below ``provisioner``; ``!`` before one leaves out what it matches."""
    tests: tuple[str, ...]


LIFECYCLE = (
    "planner/lifecycle.py",
    "planner/states.py",
    "planner/breakers.py",
    "planner/context.py",
)
LIMITS = ("planner/capacity.py", "planner/demand.py", "planner/matching.py")
VALIDATION = (
    "planner/validation.py",
    "config/loading.py",
    "config/strict_yaml.py",
    "config/units.py",
)
PARTS = {
    "planner": Part(
        ("planner/*.py", *(f"!{each}" for each in (*LIFECYCLE, *LIMITS, *VALIDATION))),
        ("tests/planner",),
    ),
    "lifecycle": Part(LIFECYCLE, ("tests/planner",)),
    "limits": Part(LIMITS, ("tests/planner",)),
    "validation": Part(VALIDATION, ("tests/planner", "tests/config")),
    "controller": Part(("controller/*.py",), ("tests/controller",)),
    "store": Part(("store/*.py",), ("tests/store",)),
}
SLOW = {
    "test_scale.py",
    "test_fuzz.py",
    "test_same_record.py",
    "test_kill.py",
    "test_crash.py",
    "test_process.py",
}
"""Files of tests that measure, search at random or start many processes: too slow to be run for each mutant."""
LONG_S = 0.5
"""A test that takes longer runs after the others."""
TOO_LONG_S = 5.0
"""A test that takes longer, with all its parameters, is not run at all: mostly they draw their examples at random."""

UNLIKELY = re.compile(r"_Is(Not)?_(Lt|Gt)")
"""Operators whose mistakes nobody makes: ``x is None`` as ``x < None``."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake in one module."""

    module: str
    """Path below ``provisioner``."""
    source: str
    """The beginning of the SHA-256 of the module's text."""
    operator: str
    occurrence: int
    line: int


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of the tests for a mutant: ``killed``, ``survived`` or ``timeout``, which counts as killed."""

    mutant: Mutant
    outcome: str
    before: str
    after: str
    """The line without and with the mistake."""


def main(argv: Sequence[str] | None = None) -> int:
    """Try mutants of each part, then report all that is known of the modules as they are. Return 1
    if tests fail without any mistake."""
    options = _options(argv)
    if not options.report:
        for name in options.part or PARTS:
            if not _try(name, options.sample, options.seed, options.survivors, options.workers):
                return 1
    _report(options.part or list(PARTS))
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="only this; may be given again"
    )
    parser.add_argument(
        "--sample", type=int, metavar="N", help="places in the code, drawn at random (default: all)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument(
        "--survivors", action="store_true", help="those that survived again, after tests were added"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="mutants at a time (default: 1)"
    )
    parser.add_argument("--report", action="store_true", help="only report what is known")
    return parser.parse_args(argv)


# -------------------------------------------------------------------------------------------------------------
# mutants


def modules_of(part: Part) -> list[Path]:
    """Return the files of a part, sorted."""
    code = ROOT / "provisioner"
    without = {
        path for each in part.modules if each.startswith("!") for path in code.glob(each[1:])
    }
    found = {path for each in part.modules if not each.startswith("!") for path in code.glob(each)}
    return sorted(path for path in found - without if path.name != "__init__.py")


def mutants_of(module: Path) -> Iterator[Mutant]:
    """Yield every mistake that the operators know for a module."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast_from_path(module)))
    source = _source_id(module)
    for name in sorted(operator_names()):
        operator_class = get_operator(name)
        if operator_class.arguments() or UNLIKELY.search(name):
            continue
        operator = operator_class()
        places = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, (line, _) in enumerate(places):
            yield Mutant(
                str(module.relative_to(ROOT / "provisioner")), source, name, occurrence, line
            )


def drawn(part: Part, sample: int | None, seed: int) -> Iterator[tuple[Mutant, str]]:
    """Yield mutants with their text: of each line of code at most one if there is a ``sample``, lines at random."""
    lines: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for module in modules_of(part):
        for mutant in mutants_of(module):
            lines[mutant.module, mutant.line].append(mutant)
    chance = random.Random(seed)
    places = sorted(lines)
    chance.shuffle(places)
    count = 0
    for place in places:
        here = lines[place]
        chance.shuffle(here)
        for mutant in here:
            text = _mutated(mutant)
            if text is not None:
                yield mutant, text
                count += 1
                if sample is not None:
                    break
        if sample is not None and count >= sample:
            return


def _mutated(mutant: Mutant) -> str | None:
    """Return the module with the mistake; None if it means the same (in an annotation), or is no Python."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    text = (ROOT / "provisioner" / mutant.module).read_text()
    mutated: str | None = mutate_code(text, get_operator(mutant.operator)(), mutant.occurrence)
    try:
        return mutated if mutated is not None and _meaning(mutated) != _meaning(text) else None
    except SyntaxError:
        return None


def _meaning(text: str) -> str:
    """Return the syntax tree as text, without annotations: they are never evaluated here."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Name("_")
    return ast.dump(tree)


def _source_id(module: Path) -> str:
    return hashlib.sha256(module.read_bytes()).hexdigest()[:16]


# ---------------------------------------------------------------------------------------------------------------
# tests


class Copy:
    """A copy of the code, in which one module at a time is changed and tests are run."""

    def __init__(self, number: int = 0) -> None:
        self.place = KEPT / f"tree-{os.getpid()}-{number}"
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name, self.place / name, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(ROOT / name, self.place / name)

    def outcome(self, module: str, text: str, tests: Sequence[str], limit_s: float) -> str:
        """Return what the tests make of a module with this text, with so much processor time."""
        file = self.place / "provisioner" / module
        before = file.read_text()
        file.write_text(text)
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
        try:
            return self.run(["-B"], ["-x", *tests], limit_s)
        finally:
            file.write_text(before)

    def touched(self, tests: Sequence[str]) -> Touched | None:
        """Run tests of the unchanged code, which leaves compiled modules for later runs. Return None if one fails."""
        to = self.place / "touched.json"
        if (
            self.run([], ["-p", "benchmarks.touched", "--touched", str(to), *tests], 3600.0)
            != "survived"
        ):
            return None
        return Touched(**json.loads(to.read_text()))

    def run(self, interpreter: Sequence[str], arguments: Sequence[str], limit_s: float) -> str:
        """Run tests of the copy, with the same examples each time."""
        quiet = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:rerunfailures"]
        command = [
            sys.executable,
            *interpreter,
            "-m",
            "pytest",
            *quiet,
            "-m",
            "not slow and not live",
            *arguments,
        ]
        # before the checkout that is installed
        env = {**os.environ, "PYTHONPATH": str(self.place), "CI": "true"}
        with subprocess.Popen(
            ["nice", "-n", "19", *command],
            cwd=self.place,
            env=env,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as running:
            # Processor time: how long a run takes says more of who else uses the host.
            resource.prlimit(running.pid, resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 1))
            try:
                said, _ = running.communicate(timeout=120 + 10 * limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                return "timeout"
        if running.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return "timeout"
        # 4: a module of tests, or a conftest.py, cannot be imported
        if running.returncode not in (0, 1, 2, 4):
            raise RuntimeError(f"pytest ended with {running.returncode}: {said[-2000:]}")
        return "killed" if running.returncode else "survived"


@dataclass(frozen=True, slots=True)
class Touched:
    """The tests that run each line: what `benchmarks.touched` wrote."""

    seconds: dict[str, float]
    """By test, all its parameters together."""
    lines: dict[str, dict[str, list[str]]]
    """By module and line: tests, and files of tests whose fixtures run it."""

    def tests(self, module: str, text: str, line: int) -> list[str]:
        """Return the tests that run the statement of a line: all of them if the first import runs it."""
        here, lines = self.lines.get(module, {}), _statement(text, line)
        names = {name for each in lines for name in here.get(str(each), ())} if lines else {""}
        quick = (test for test, seconds in self.seconds.items() if seconds <= TOO_LONG_S)
        return [test for test in quick if names & {test, test.partition("::")[0], ""}]


def _statement(text: str, line: int) -> range:
    """Return the lines of the innermost statement around a line, without the statements within it:
    none if no test ever runs it, since it is outside of any function."""
    inside, lines = False, range(0)
    for node in ast.walk(ast.parse(text)):  # outer ones before inner ones
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        within = [
            each.lineno
            for each in ast.walk(node)
            if isinstance(each, ast.stmt) and each is not node
        ]
        lines = range(
            node.lineno, max(node.lineno, min(within) - 1 if within else node.end_lineno or 0) + 1
        )
        inside |= (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and line >= node.body[0].lineno
        )
    return lines if inside else range(0)


def _files(place: Path, tests: Sequence[str]) -> list[str]:
    """Return the files of tests in directories, without the slow ones."""
    files = (file for directory in tests for file in sorted((place / directory).glob("test_*.py")))
    return [str(file.relative_to(place)) for file in files if file.name not in SLOW]


def _nearest_first(place: Path, seconds: dict[str, float], module: str) -> list[str]:
    """Return tests by the seconds that they take: those first whose file names the module most
    often, and the long ones last. A mutant dies sooner."""
    word = Path(module).stem

    def distance(file: str) -> tuple[bool, int]:
        path = place / file
        near = path.read_text().count(word) + 1000 * (path.stem == f"test_{word}")
        return path.parent.name != Path(module).parent.name, -near

    far = {file: distance(file) for file in {test.partition("::")[0] for test in seconds}}
    return sorted(seconds, key=lambda test: (seconds[test] > LONG_S, far[test.partition("::")[0]]))


def _try(name: str, sample: int | None, seed: int, survivors: bool, workers: int) -> bool:
    """Try the mutants of a part that are not known yet. Return False if the tests fail without a mistake."""
    part, console, copies = PARTS[name], Console(), [Copy(number) for number in range(workers)]
    for copy in copies:
        touched = copy.touched(_files(copy.place, part.tests))
        if touched is None:
            console.print(f"{name}: the tests fail without any mistake. Repair them first")
            return False
    module = str(modules_of(part)[0].relative_to(ROOT / "provisioner"))
    if (
        copies[0].outcome(
            module, "raise RuntimeError\n", _files(copies[0].place, part.tests), 600.0
        )
        != "killed"
    ):
        console.print(f"{name}: the tests do not run the copy in {copies[0].place}")
        return False
    known = {each.mutant: each for each in _known(name)}
    again = (
        [each for each, result in known.items() if result.outcome == "survived"]
        if survivors
        else []
    )
    todo = (
        ((each, _mutated(each) or "") for each in again) if survivors else drawn(part, sample, seed)
    )
    one_at_a_time = threading.Lock()

    def work(copy: Copy) -> None:
        while True:
            with one_at_a_time:
                mutant, text = next(todo, (None, ""))
            if mutant is None:
                return
            if mutant in known and not survivors:
                continue
            sound = (ROOT / "provisioner" / mutant.module).read_text()
            seconds = {
                test: touched.seconds[test]
                for test in touched.tests(mutant.module, sound, mutant.line)
            }
            tests = _nearest_first(copy.place, seconds, mutant.module)
            limit_s = 30.0 + 4 * sum(seconds.values())
            outcome = copy.outcome(mutant.module, text, tests, limit_s) if tests else "survived"
            before, after = _changed(mutant.module, text)
            with one_at_a_time, (KEPT / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps(asdict(Result(mutant, outcome, before, after))) + "\n")
            console.print(
                f"{name} {outcome:8} {mutant.module}:{mutant.line}: {before} -> {after}",
                markup=False,
            )

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, copy) for copy in copies]:
            done.result()
    for copy in copies:
        shutil.rmtree(copy.place)
    return True


def _changed(module: str, text: str) -> tuple[str, str]:
    """Return the first line that differs, without and with the mistake."""
    before = (ROOT / "provisioner" / module).read_text().splitlines()
    pairs = zip(before, text.splitlines(), strict=False)
    return next(((was.strip(), now.strip()) for was, now in pairs if was != now), ("", ""))


# --------------------------------------------------------------------------------------------------------------
# report


def _known(name: str) -> list[Result]:
    """Return the newest result of each mutant of a part, as far as its module is still the same."""
    try:
        lines = (KEPT / f"{name}.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    sources = {
        str(m.relative_to(ROOT / "provisioner")): _source_id(m) for m in modules_of(PARTS[name])
    }
    found: dict[Mutant, Result] = {}
    for line in lines:
        row = json.loads(line)
        mutant = Mutant(**row.pop("mutant"))
        if sources.get(mutant.module) == mutant.source and not UNLIKELY.search(mutant.operator):
            found[mutant] = Result(mutant, **row)
    return list(found.values())


def _report(names: Sequence[str]) -> None:
    """Print the scores by module and the survivors, and write them to ``var/mutants/report.json``."""
    table = Table(
        "part",
        "module",
        "mutants",
        "killed",
        "survived",
        "score",
        title="Mutants that the tests noticed",
    )
    rows: list[dict[str, object]] = []
    survivors: list[Result] = []
    for name in names:
        by_module: dict[str, list[Result]] = defaultdict(list)
        for result in _known(name):
            by_module[result.mutant.module].append(result)
        everything = [result for results in by_module.values() for result in results]
        for module, results in [*sorted(by_module.items()), ("all", everything)]:
            survived = sum(result.outcome == "survived" for result in results)
            if not results:
                continue
            score = 1.0 - survived / len(results)
            rows.append(
                {
                    "part": name,
                    "module": module,
                    "mutants": len(results),
                    "survived": survived,
                    "score": score,
                }
            )
            counts = (str(len(results)), str(len(results) - survived), str(survived))
            table.add_row(name, module, *counts, f"{score:.0%}", end_section=module == "all")
        survivors += [result for result in everything if result.outcome == "survived"]
    console = Console()
    console.print(table)
    for each in sorted(survivors, key=lambda each: (each.mutant.module, each.mutant.line)):
        console.print(
            f"survived {each.mutant.module}:{each.mutant.line}: {each.before} -> {each.after}",
            markup=False,
        )
    KEPT.mkdir(parents=True, exist_ok=True)
    report = {"scores": rows, "survivors": [asdict(each) for each in survivors]}
    (KEPT / "report.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
