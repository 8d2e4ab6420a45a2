"""Make the golden records: ``python -m tests.golden.make [--only PART] [--worlds N] [--check]``."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import io
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import provisioner
from docs.make_reference import REASON_EXAMPLES
from provisioner.answers.query import Format
from provisioner.cli.__main__ import run_verb
from provisioner.config import ConfigError, check
from provisioner.store import tables
from provisioner.store.writer import SqlStore
from tests.golden import plans, story
from tests.migrate import examples
from tests.simulator import declared

ROOT = Path(__file__).parents[2]
RECORDS = Path(__file__).parent / "records"
BROKEN = ROOT / "tests" / "config" / "broken"
CASES = sorted([*BROKEN.glob("*.yaml"), *BROKEN.glob("*/provisioner.yaml")])
WORLDS, COMPARED, EXPLAINED = 300, 20, 20
"""Worlds on record, those that the test compares, and those of which the reasons are on record, too."""
Records = Iterator[tuple[str, str]]

LISTS = """
status
drones | drones --all | drones show 7 | drones show 12
sites | sites show topas | sites show horeka
demand | demand --waiting
explain class 7f3a91c07be4d856 | explain class 9be2 | explain class 5c0f | explain class 1
explain job 204.2 | explain job 999.0 | explain drone 7
plan
events --since all
estimates | estimates --user etp/anna
usage | usage --by type
snapshot --list
replay --tick 3 | replay --tick 3 --what-if 'topas down'
"""
"""A line per verb: each command is run in every format."""
ONCE = """
status --check
drones drain --site cloud --reason upgrade --dry-run | drones kill 7 --reason broken --yes
drones drain 7 8 --reason upgrade --yes --mode graceful | drones --all --node topas-a100-2 -o name
drones show 999 | drones --columns id,nonsense
sites reset horeka --reason repaired | sites reset nowhere --reason x | sites show nowhere
estimates forget --user bob --site topas --reason 'new code' | estimates forget --reason x
snapshot --to saved.json | snapshot --tick 3 | snapshot --tick 77
replay saved.json | replay saved.json --what-if 'moon down' | replay --tick 1
reload | run --config nothing.yaml | events --since nonsense | dronse | drones --stat
version | schema nonsense | services | explain service nosuch
"""
FILES_LISTS = """
check -c provisioner.yaml | check -c broken/provisioner.yaml
jobs -c queue.yaml
simulate trace.csv -c two.yaml --world world.yaml -j 1
import tardis.yml --to new
"""
FILES_ONCE = """
check -c nothing.yaml | check -c nowhere/provisioner.yaml
render blocking --site topas -c provisioner.yaml | render blocking --site horeka -c provisioner.yaml
render blocking --site nowhere -c provisioner.yaml
submit -c queue.yaml --gpus 1.5 true | submit -c queue.yaml --env A true | jobs -c queue.yaml 1 9
simulate trace.csv -c two.yaml --seeds 2 -j 1 --what-if 'cloud down' | simulate trace.csv -c two.yaml --span 5
simulate --recorded -c two.yaml --store record.db -j 1 --group alice
import slurm.yml --to slurm | import clouds.yml --to clouds | import openstack.yml --to openstack
import fake.yml --to fake
"""
SUBMITTED = """
submit -c queue.yaml -n 2 --gpus 0.5 --env A=B -- sleep 60
submit -c queue.yaml --vram '40 GiB' --walltime 2h -- ./train.sh
"""

PROGRESS = re.compile(r"\d+ of \d+ replays done")
"""Told of replays that take real seconds: not everywhere the same."""


def told(*words: str) -> str:
    """Run one command line in this process; return what it was, its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_verb(list(words))
    lines = (line for line in err.getvalue().splitlines() if not PROGRESS.match(line))
    errors = "".join(f"stderr: {line}\n" for line in lines)
    return f"$ provisioner {shlex.join(words)}\n{out.getvalue()}{errors}exit {code:d}\n\n"


@contextmanager
def fixed() -> Iterator[Path]:
    """Enter an empty directory, in which neither clock, host, user nor environment shows."""
    keep = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV")
    }
    clear = keep | {
        "COLUMNS": "100",
        "TZ": "UTC",
        "HOME": "/nowhere",
        "LOGNAME": "alice",
        "USER": "alice",
    }
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as here, ExitStack() as stack:
        os.chdir(here)
        stack.callback(os.chdir, before)
        stack.enter_context(patch.dict(os.environ, clear, clear=True))
        stack.enter_context(patch.object(time, "time", lambda: story.NOW))
        stack.enter_context(patch.object(time, "perf_counter", lambda: 0.0))
        # Else the monotonic clock, which goes on, contradicts the other on a host that needs half a minute.
        stack.enter_context(patch.object(tables, "boot_id", lambda: ""))
        stack.enter_context(patch.object(provisioner, "__version__", "0.0"))
        stack.enter_context(patch("provisioner.cli.__main__._commit", lambda package: "0123abcd"))
        stack.enter_context(patch.object(sys, "argv", ["provisioner"]))
        yield Path(here)


def _run(commands: str, folder: str, formats: Iterable[Format | None] = (None,)) -> Records:
    """Run each command in each format, and yield what is printed by verb."""
    texts: defaultdict[str, str] = defaultdict(str)
    for command in re.split(r"\n| \| ", commands.strip()):
        verb, *words = shlex.split(command)
        for form in formats:
            show = ["-o", form.value] if form else []
            again = ["--force"] if verb == "import" and form not in (None, Format.TABLE) else []
            texts[verb] += told(verb, *words, *again, *show)
    for verb, text in sorted(texts.items()):
        yield f"{folder}/{verb}.txt", text


def cli_records() -> Records:
    """Every verb that reads the record, in every format; those that ask for something; one with every reason."""
    with fixed():
        asyncio.run(story.write(Path("record.db"), decided=True))
        os.environ["PROVISIONER_STORE"] = "record.db"
        yield from _run(LISTS, "cli/record", Format)
        yield from _run(ONCE, "cli/once")
        yield "cli/running.txt", asyncio.run(_held())
    with fixed():
        asyncio.run(story.write(Path("record.db"), decided=False))
        os.environ["PROVISIONER_STORE"] = "record.db"
        yield from _run(LISTS, "cli/reasons", (Format.TABLE, Format.JSON))


async def _held() -> str:
    """Return what is told while a controller holds the record."""
    with (
        patch.object(os, "getpid", lambda: 4242),
        patch.object(socket, "gethostname", lambda: "head"),
    ):
        async with SqlStore(Path("record.db"), story.CONTROLLER, 1e9, 10, threaded=False):
            return (
                told("status")
                + told("status", "--check")
                + told("status", "-o", "json")
                + told("drones")
            )


def files_records() -> Records:
    """Every verb that reads configuration files, or makes some."""
    with fixed() as here:
        for path in (ROOT / "site_configs").glob("*.yaml"):
            shutil.copy(path, here)
        shipped = (here / "provisioner.yaml").read_text(encoding="utf-8")
        sites = "sites: [topas.yaml, horeka.yaml, gridka-cloud.yaml]"
        Path("provisioner.yaml").write_text(
            re.sub(r"^sites:\n(  .*\n)+", f"{sites}\n", shipped, flags=re.MULTILINE)
        )
        queue = "overlay: {adapter: embedded, options: {path: queue.db}}\nsites: [horeka.yaml]\n"
        jobs = "".join(f"{60 * n},{300 + 40 * (n % 7)},{1 + n % 2},ann\n" for n in range(12))
        for name, text in (
            ("queue.yaml", f"controller: test\nstore: {{path: test.db}}\n{queue}"),
            ("two.yaml", declared.CONTROLLER),
            ("farm.yaml", declared.FARM),
            ("cloud.yaml", declared.CLOUD),
            ("world.yaml", "sites:\n  farm: {boot: {median: 1min, sigma: 0.3}, queue: 10s}\n"),
            ("trace.csv", f"submit_s,duration_s,gpus,user\n{jobs}"),
            ("tardis.yml", examples.HTCONDOR),
            ("slurm.yml", examples.SLURM),
            ("clouds.yml", examples.CLOUDS),
            ("openstack.yml", examples.OPENSTACK),
            ("fake.yml", examples.FAKE),
            *examples.JDLS.items(),
        ):
            Path(name).write_text(text)
        shutil.copytree(BROKEN / "all-files-at-once", here / "broken")
        asyncio.run(story.write(here / "record.db", decided=True))
        runs = ((SUBMITTED, (None,)), (FILES_LISTS, Format), (FILES_ONCE, (None,)))
        found: defaultdict[str, str] = defaultdict(str)
        for commands, formats in runs:
            for name, text in _run(commands, "cli/files", formats):
                found[name] += text
        for folder in ("clouds", "fake", "new", "openstack", "slurm"):
            for path in sorted(Path(folder).rglob("*.yaml")):
                found["cli/files/imported.txt"] += (
                    f"--- {path}\n{path.read_text(encoding='utf-8')}\n"
                )
        for name, text in sorted(found.items()):
            yield name, text.replace(str(here), "DIR")


def help_records() -> Records:
    """``--help`` of every verb, found from the help of the verb above it."""

    def pages(*words: str) -> Iterator[str]:
        page = told(*words, "--help")
        yield page
        for verb in re.findall(
            r"^  ([\w-]+)", page.partition("\nCommands:\n")[2].partition("\n\n")[0], re.MULTILINE
        ):
            yield from pages(*words, verb)

    with fixed():
        yield "cli/help.txt", "".join(pages())


def messages_records() -> Records:
    """The problems of all broken configurations and world files."""
    with fixed() as here:
        os.chdir(BROKEN.parent)
        found = (
            (case.relative_to(BROKEN.parent), check(case.relative_to(BROKEN.parent)).problems)
            for case in CASES
        )
        lines = [
            f"{case}\n" + "".join(f"  {problem}\n" for problem in problems)
            for case, problems in found
        ]
        yield "messages/config.txt", "".join(lines).replace(str(ROOT), "ROOT")
        lines, settings = [], declared.declared(here)
        for text in declared.BROKEN:
            try:
                raise AssertionError(declared.world(settings, text))
            except ConfigError as error:
                lines.append(
                    f"{text.rstrip()}\n  -> {error}\n".replace(f"{here}/", "").replace(
                        str(here), "DIR"
                    )
                )
        yield "messages/world.txt", "".join(lines)


def reasons_records() -> Records:
    """Every reason with its kind, what it is for, and its sentence."""
    lines = (f"{e.kind} ({e.category.value})\n  {e.describe()}\n" for e in REASON_EXAMPLES)
    yield "reasons.txt", "".join(lines)


def snapshots_records() -> Records:
    """The plans of all saved snapshots."""
    yield from zip(
        ("plans/snapshots.txt", "plans/snapshots-reasons.txt"), plans.saved(), strict=True
    )


def worlds_records(worlds: int, jobs: int = 1) -> Records:
    """The plans of the first ``worlds`` random worlds."""
    with ProcessPoolExecutor(jobs) as pool:
        found = list((pool.map if jobs > 1 else map)(plans.world, range(worlds)))
    yield "plans/worlds.txt", "".join(f"{actions}\n" for actions, _ in found)
    yield "plans/worlds-reasons.txt", "".join(f"{reasons}\n" for _, reasons in found[:EXPLAINED])


PARTS: dict[str, Callable[[], Records]] = {
    "cli": cli_records,
    "files": files_records,
    "help": help_records,
    "messages": messages_records,
    "reasons": reasons_records,
    "snapshots": snapshots_records,
    "worlds": lambda: worlds_records(COMPARED),
}


def differences(made: Records) -> list[str]:
    """Return a unified diff of the records as they are and as they are made now; of worlds, only of those made."""
    found: list[str] = []
    for name, text in made:
        path = RECORDS / name
        now = text.splitlines()
        was = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if name.startswith("plans/worlds"):
            was = was[: len(now)]
        found += difflib.unified_diff(
            was, now, f"{name} (on record)", f"{name} (now)", n=1, lineterm=""
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="these parts; may be given again"
    )
    parser.add_argument("--worlds", type=int, default=WORLDS, metavar="N")
    parser.add_argument(
        "--check", action="store_true", help="only show what differs; exit 1 if anything does"
    )
    asked = parser.parse_args()
    parts = PARTS | {"worlds": lambda: worlds_records(asked.worlds, jobs=2)}
    made = ((name, text) for part in asked.only or PARTS for name, text in parts[part]())
    if asked.check:
        found = differences(made)
        print("\n".join(found) or "no difference")
        return 1 if found else 0
    for name, text in made:
        path = RECORDS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
