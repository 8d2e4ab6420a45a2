"""``provisioner simulate``: a small replay from end to end, comparisons, questions, and every broken input."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from provisioner.answers.schemas import output_schemas
from provisioner.cli.replays import progress
from provisioner.config import load
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.report import from_json
from provisioner.simulator.world import Scenario
from provisioner.simulator.world_file import world_of
from provisioner.store.writer import SqlStore
from tests.cli.conftest import Cli, process
from tests.simulator.crashing import simulate

CONTROLLER = """
controller: test
store: {path: test.db}
overlay: {adapter: htcondor, options: {}}
sites: [farm.yaml, cloud.yaml]
policy: {idle_timeout: 1min}
"""
SITE = """
site: %s
adapter: htcondor
limits: {max_drones: %d, max_gpus: %d}
types:
  gpu: {gpus: 1, gpu_model: V100, vram: 32 GiB, cpus: 4, memory: 8 GiB, disk: 10 GiB, price: %s}
"""
WORLD = """
sites:
  farm: {boot: {median: 1min, sigma: 0.3}, queue: 10s}
  cloud: {boot: {median: 3min, sigma: 0.3}}
"""
TRACE = "submit_s,duration_s,gpus,user\n" + "".join(
    f"{60 * n},{300 + 40 * (n % 7)},1,ann\n" for n in range(40)
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A configuration of two sites, a world and a trace."""
    for name, text in (
        ("provisioner.yaml", CONTROLLER),
        ("other.yaml", CONTROLLER.replace("1min", "20min")),
        ("farm.yaml", SITE % ("farm", 6, 6, "1.0")),
        ("cloud.yaml", SITE % ("cloud", 4, 4, "2.0")),
        ("world.yaml", WORLD),
        ("t.csv", TRACE),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def figures(answer: object) -> dict[tuple[str, str], dict[str, object]]:
    return {(row["figure"], row["policy"]): row for row in answer["figures"]}  # type: ignore[index]


def test_a_small_replay_from_end_to_end(here: Path, cli: Cli) -> None:
    ran = cli(
        "simulate",
        "t.csv",
        "--world",
        "world.yaml",
        "--seed",
        "7",
        "-o",
        "json",
        "--json",
        "all.json",
    )
    assert ran.code == 0, ran.err
    answer = ran.json
    jsonschema.validate(answer, output_schemas()["provisioner.simulation/1"])
    assert (answer["trace"], answer["jobs"], answer["seeds"]) == ("t", 40, [7])
    assert "cloud: no queue, release 5 s" in answer["notes"]
    told = figures(answer)
    assert told["Jobs done", "provisioner.yaml"]["mean"] == 40
    assert told["Violations", "provisioner.yaml"]["mean"] == 0
    good = sum(300 + 40 * (n % 7) for n in range(40)) / 3600
    assert told["Good", "provisioner.yaml"]["mean"] == pytest.approx(good)
    assert told["Held", "provisioner.yaml"]["mean"] > good  # type: ignore[operator]
    (result,) = from_json((here / "all.json").read_text())["provisioner.yaml"]
    assert (result.seed, result.jobs_done, result.violations) == (7, 40, ())
    hours = result.gpu_hours
    assert hours.held == pytest.approx(
        hours.good + hours.badput + hours.boot + hours.release + hours.idle
    )


def test_the_same_seed_gives_the_same_replay_in_this_process_and_in_others(
    here: Path, cli: Cli
) -> None:
    alone = cli(
        "simulate", "t.csv", "--world", "world.yaml", "--seeds", "2", "-j", "1", "-o", "json"
    )
    done = process(
        "simulate",
        "t.csv",
        "--world",
        "world.yaml",
        "--seeds",
        "2",
        "-j",
        "2",
        "-o",
        "json",
        cwd=here,
    )
    assert done.returncode == alone.code == 0, done.stderr

    def timeless(answer: object) -> object:
        return [row for row in answer["figures"] if row["group"] != "Cost"]  # type: ignore[index]

    assert timeless(json.loads(done.stdout)) == timeless(alone.json)


def test_two_policies_side_by_side_over_the_same_seeds(here: Path, cli: Cli) -> None:
    compared = ("simulate", "t.csv", "--compare", "provisioner.yaml", "other.yaml", "-j", "1")
    ran = cli(*compared, "--seeds", "3", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.json["policies"] == ["provisioner.yaml", "other.yaml"]
    told = figures(ran.json)
    first, second = told["Idle", "provisioner.yaml"], told["Idle", "other.yaml"]
    assert first["difference"] is None and first["seeds"] == second["seeds"] == 3
    assert second["difference"] == pytest.approx(second["mean"] - first["mean"])  # type: ignore[operator]
    assert second["mean"] > first["mean"] and second["improved"] == 0  # type: ignore[operator]
    table = cli(*compared, "--seeds", "2").out
    head = next(line for line in table.splitlines() if line.startswith("FIGURE"))
    assert {"FIGURE", "POLICY", "MEAN", "DIFFERENCE"} <= set(head.split()) and len(head) <= 100


def test_jobs_that_fit_no_drone_are_told_by_size(here: Path, cli: Cli) -> None:
    lines = ("0,60,1,1", "5,60,4,1", "9,60,8,1", "9,60,4,1", "9,60,1,16", "9,60,1,64", "9,60,1,64")
    (here / "t.csv").write_text("submit_s,duration_s,gpus,cpus\n" + "\n".join(lines) + "\n")
    ran = cli("simulate", "t.csv", "-j", "1", "-o", "json")
    assert (
        ran.code == 0
        and figures(ran.json)["Jobs that fit no drone", "provisioner.yaml"]["mean"] == 6
    )
    told = "3 of 1 GPU (cpus), 2 of 4 GPU (gpus), 1 of 8 GPU (gpus)"
    assert f"6 jobs of 7 fit no drone type and never start: {told}" in ran.err


def test_a_page_is_written(here: Path, cli: Cli) -> None:
    ran = cli("simulate", "t.csv", "-j", "1", "--report", "out.html")
    assert ran.code == 0, ran.err
    assert "</html>" in (here / "out.html").read_text() and "report: out.html" in ran.err


def test_a_promise_that_was_broken_is_told_and_ends_in_3(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A farm that is away for ever leaves jobs undone: no cloud, no drone."""
    monkeypatch.setattr("provisioner.simulator.replay.REPLAY_STALL_S", 600.0)
    (here / "provisioner.yaml").write_text(CONTROLLER.replace("farm.yaml, cloud.yaml", "farm.yaml"))
    ran = cli(
        "simulate", "t.csv", "--limit", "2", "--what-if", "farm down", "-j", "1", "-o", "json"
    )
    assert ran.code == 3
    assert "2 of 2 jobs were not done" in ran.err
    assert ran.json["violations"][0]["text"].endswith("none has run since 60 s")


MONTH = tuple(
    SimulatedJob(
        1200.0 * (n // 4),
        600.0 + 60 * (n % 3),
        JobRequirements(1000, 2, 4096, owner="ann" if n % 2 else "ben", group="physics"),
    )
    for n in range(24)
)
"""Four jobs every 20 minutes."""


def test_jobs_on_record_are_replayed_as_they_came(here: Path, cli: Cli) -> None:
    """The configured controller has run them, in virtual time, with its real store."""
    settings = load(here / "provisioner.yaml", connects=False)
    plan = world_of(settings, None, span_s=1.0)
    scenario = Scenario(plan.facilities, MONTH, policy=settings.policy, pool=plan.pool, seed=3)
    outcome = simulate(scenario, lambda: SqlStore(here / "test.db", "test", 1e9, 3, threaded=False))
    assert (outcome.violations, outcome.jobs_done) == ((), 24)
    ran = cli("simulate", "--recorded", "-j", "1", "-o", "json", "--json", "all.json")
    assert ran.code == 0, ran.err
    assert (ran.json["trace"], ran.json["jobs"]) == ("recorded", 24)
    assert "test.db: jobs submitted from 2025-05-" in ran.err and "are not on record" in ran.err
    (result,) = from_json((here / "all.json").read_text())["provisioner.yaml"]
    good_h = sum(job.duration_s for job in MONTH) / 3600
    assert result.jobs_done == 24 and result.gpu_hours.good == pytest.approx(good_h, rel=0.01)
    part = cli(
        "simulate", "--recorded", "--span", "65min", "--group", "ann", "-j", "1", "-o", "json"
    )
    assert part.json["jobs"] == 6, (
        "half of the jobs are ann's, and half of those are of the last hour"
    )
    assert (
        cli("simulate", "--recorded", "--group", "physics", "-j", "1", "-o", "json").json["jobs"]
        == 24
    )


def children(of: int) -> dict[int, int]:
    """Processes that ``of`` has started, with the ticks of processor time that each has had."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(words[1]) == of:
                    found[int(entry.name)] = int(words[11])
    return found


def test_a_polite_kill_ends_all_processes(here: Path) -> None:
    (here / "t.csv").write_text(
        "submit_s,duration_s\n" + "".join(f"{600 * n},300\n" for n in range(50_000))
    )
    command = [
        sys.executable,
        "-m",
        "provisioner.cli",
        "simulate",
        "t.csv",
        "--seeds",
        "2",
        "-j",
        "2",
    ]
    running = subprocess.Popen(
        command, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        second = os.sysconf("SC_CLK_TCK")
        # both replay
        while sum(ticks > 2 * second for ticks in children(running.pid).values()) < 2:
            assert running.poll() is None
            time.sleep(0.1)
        theirs = children(running.pid)
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130 and "Traceback" not in err, err
    while any(Path(f"/proc/{pid}").exists() for pid in theirs):  # the test's own deadline ends this
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((), 2, "name a TRACE, or replay the jobs on record with --recorded"),
        (("nothing.csv",), 1, "no trace at nothing.csv"),
        (("t.csv", "--group", "bob"), 3, "t.csv: none of its 40 jobs is left"),
        (
            ("t.csv", "--what-if", "fram down"),
            2,
            "--what-if: `fram down`: no site `fram` here: did you mean `farm`?",
        ),
        (("t.csv", "--recorded"), 2, "name a TRACE, or replay the jobs on record"),
        (
            ("--recorded", "--from", "1d"),
            2,
            "--from, --ignore, --trace-columns and --skip-bad need a",
        ),
        (
            ("t.csv", "--seed", "3", "--seeds", "2"),
            2,
            "--seed and --seeds exclude each other: remove one",
        ),
        (("t.csv", "--compare", "other.yaml", "other.yaml"), 2, "other.yaml is named twice"),
        (
            ("t.csv", "--report", "no/such/place.html"),
            1,
            "no/such/place.html: no file in a directory that can",
        ),
        (("t.csv", "--json", "."), 1, ".: no file in a directory"),
        (("t.csv", "--what-if", "farm queue*2"), 2, "it takes no time there to begin with"),
        (("t.csv", "--what-if", "farm owner=none"), 2, "farm has no owner"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_a_line(
    here: Path, cli: Cli, words: tuple[str, ...], code: int, told: str
) -> None:
    ran = cli("simulate", *words)
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert told in ran.err and "Traceback" not in ran.err


def test_a_broken_line_of_a_trace_is_named_or_left_out(here: Path, cli: Cli) -> None:
    (here / "t.csv").write_text(TRACE + "x,300,1,ann\n")
    ran = cli("simulate", "t.csv")
    assert (
        ran.code == 3
        and "t.csv:42: `submit_s`: `x` is no number" in ran.err
        and "--skip-bad" in ran.err
    )
    ran = cli("simulate", "t.csv", "--skip-bad", "--limit", "3", "-j", "1", "-o", "json")
    assert ran.code == 0 and ran.json["bad_lines"] == 1 and ran.json["jobs"] == 3
    assert "left out 1 bad line, the first: t.csv:42" in ran.err


@pytest.mark.parametrize(
    ("world", "change", "wrong"),
    [
        ("", "", "cloud: `boot` takes 1 min 15 s, longer than `timeouts.booting` (20 s)"),
        (
            "{cloud: {boot: 10s, queue: 2h}}",
            "",
            "cloud: `queue` takes 2 h, longer than `timeouts.queued` (1 h)",
        ),
        (
            "{cloud: {boot: 10s, types: {gpu: {boot: {low: 1min, high: 3min}}}}}",
            "",
            "cloud/gpu: `boot` takes 2 min, longer than `timeouts.booting` (20 s)",
        ),
        ("{cloud: {boot: 10s}}", "cloud boot*6", "cloud: `boot` takes 1 min, longer than"),
    ],
)
def test_a_world_whose_drones_would_all_time_out_is_refused(
    here: Path, cli: Cli, world: str, change: str, wrong: str
) -> None:
    """Such a replay of the demo's jobs went on for two weeks of simulated time, and told nothing."""
    cloud = here / "cloud.yaml"
    cloud.write_text(cloud.read_text() + "timeouts: {booting: 20s, queued: 1h}\n")
    (here / "world.yaml").write_text(f"sites: {world or '{}'}\n")
    asked = ["--what-if", change] if change else []
    ran = cli("simulate", "t.csv", "--world", "world.yaml", *asked)
    assert ran.code == 3 and wrong in ran.err, ran.err
    assert ran.err.count("takes") == 1 and "a world file (--world), or raise the timeout" in ran.err


def test_a_site_that_is_not_enabled_may_take_any_time(here: Path, cli: Cli) -> None:
    cloud = here / "cloud.yaml"
    cloud.write_text(cloud.read_text() + "enabled: false\ntimeouts: {booting: 20s}\n")
    ran = cli("simulate", "t.csv", "--world", "world.yaml")
    assert ran.code == 0, ran.err


def test_the_progress_names_the_simulated_time_and_the_end_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter((0.0, 10.0, 40.0, 40.0, 80.0, 80.0))
    monkeypatch.setattr("provisioner.cli.simulate.time.monotonic", lambda: next(clock))
    tell = progress(2, 86400.0)
    tell(0, 3600.0)
    tell(0, 3 * 86400.0)
    tell(0, math.inf)
    one, two = capsys.readouterr().err.splitlines()
    assert one.endswith("0 of 2 replays done, simulated time 3 d, the last job arrives at 1 d")
    assert two.endswith("1 of 2 replays done")
