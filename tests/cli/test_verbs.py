"""Every verb against the filled record: what it says, where it says it, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import jsonschema
import pytest
import yaml

from adapters.embedded.queue import remove
from provisioner.answers.errors import Exit
from provisioner.answers.schemas import output_schemas
from provisioner.model import DrainMode, RequestKind
from provisioner.planner.placement import Allocation, Placement, place
from provisioner.store.reader import Reader
from tests.cli.conftest import Cli, process

SCHEMAS = output_schemas()

ANSWERS = [
    ["status"],
    ["drones"],
    ["drones", "--all"],
    ["drones", "show", "1"],
    ["sites"],
    ["sites", "show", "topas"],
    ["demand"],
    ["explain", "class", "9"],
    ["explain", "job", "204.2"],
    ["explain", "drone", "1"],
    ["plan"],
    ["events"],
]


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_json_keeps_to_its_schema_and_yaml_and_jsonl_to_json(on: Cli, words: list[str]) -> None:
    ran = on(*words, "-o", "json")
    assert (ran.code, ran.err) == (Exit.OK, "")
    jsonschema.validate(ran.json, SCHEMAS[ran.json["schema"]], cls=jsonschema.Draft202012Validator)
    tree = yaml.safe_load(on(*words, "-o", "yaml").out)
    assert tree.keys() == ran.json.keys() and tree["schema"] == ran.json["schema"]
    lines = on(*words, "-o", "jsonl").lines
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert lines or words[:2] == ["sites", "show"], "a site without nodes has no line"


def test_a_row_in_a_pipe_is_one_line_however_wide(on: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """`grep` and `awk` got half rows: cells went on in a second line at 100 columns."""
    monkeypatch.delenv("COLUMNS")
    rows = [line for line in on("drones", "--all").lines if line.startswith("kit-")]
    assert len(rows) == len(on("drones", "--all").lines) - 1 == 4
    (demand,) = [
        line for line in on("demand", "--columns", "id,why,needs").lines if line.startswith("9 ")
    ]
    assert "the nearest, horeka/h100, has 95.5 GiB" in demand


HUGE = "99999999999999999999"


@pytest.mark.parametrize(
    "words",
    [f"snapshot --tick {HUGE}", f"replay --tick {HUGE}"]
    + [f"status --watch --interval {endless}" for endless in ("inf", "1e300", "nan")],
)
def test_a_number_that_is_too_large_is_wrong_usage(on: Cli, words: str) -> None:
    ran = on(*words.split())
    assert ran.code == Exit.USAGE and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            "drones show kit-ab12",
            Exit.FAILED,
            "kit-ab12 means 3 drones: kit-ab12-4, kit-ab12-3, kit-ab12-1",
        ),
        ("drones --site tpoas", Exit.FAILED, "no site `tpoas` on record; did you mean `topas`?"),
        (
            "drones drain --site nosuch --reason x",
            Exit.FAILED,
            "no site `nosuch` on record; known: horeka, topas",
        ),
        ("drones --site horeka show 1", Exit.USAGE, "put --site after `drones show`"),
        ("drones kill --reason x", Exit.USAGE, "name drones, or select"),
        ("drones kill 1 --site topas --reason x", Exit.USAGE, "not both"),
        ("drones kill 1 --reason ' '", Exit.USAGE, "--reason must not be empty"),
        ("replay", Exit.USAGE, "name a snapshot FILE"),
        ("reload", Exit.FAILED, "no controller runs"),
        ("explain jbo 4", Exit.USAGE, "Did you mean `explain job`?"),
        ("drain kit-ab12-1", Exit.USAGE, "Did you mean `drones drain`?"),
        ("sites drain topas", Exit.USAGE, "Did you mean `drones drain`?"),
        ("list", Exit.USAGE, "Did you mean `drones`?"),
        ("sites ls", Exit.USAGE, "Did you mean `sites`?"),
        ("xyzzy", Exit.USAGE, "No such command 'xyzzy'."),
        ("explain nosuch", Exit.FAILED, "no site `nosuch` on record"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(
    on: Cli, reader: Reader, words: str, code: Exit, said: str
) -> None:
    ran = on(*shlex.split(words))
    assert (ran.code, ran.out) == (code, "")
    assert said in " ".join(ran.err.replace("│", " ").split())
    assert _requests(reader) == []


def test_local_times_are_for_tables_only(on: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XXX-05:30")  # POSIX: 5 h 30 min east of Greenwich
    time.tzset()
    try:
        (local, *_), (utc, *_) = (
            on("events", "--no-header", *more).lines for more in (["--local"], [])
        )
        assert local.split()[0].endswith("+05:30") and utc.split()[0].endswith("Z")
        assert datetime.fromisoformat(local.split()[0]) == datetime.fromisoformat(utc.split()[0])
        assert on("events", "-o", "json", "--local").out == on("events", "-o", "json").out
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_watch_keeps_the_top_of_the_screen(running: Path) -> None:
    ours, theirs = pty.openpty()
    env = os.environ | {"COLUMNS": "80", "LINES": "20", "TERM": "xterm"}
    command = [
        sys.executable,
        "-m",
        "provisioner.cli",
        "status",
        "--watch",
        "-i",
        "0.1",
        "--store",
        str(running),
    ]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as watch:
        os.close(theirs)
        try:
            seen = b""
            while seen.count(b"\x1b[2J") < 2:
                seen += os.read(ours, 65536)
        finally:
            watch.kill()
            os.close(ours)
    shown = (
        seen.decode().split("\x1b[2J")[1].removesuffix("\x1b[H").removesuffix("\r\n").split("\r\n")
    )
    rows = sum(max(1, -(-len(re.sub(r"\x1b\[[0-9;]*m", "", line)) // 80)) for line in shown)
    assert rows <= 19, "the last row is for the cursor"
    assert shown[0].startswith("controller")
    assert any(
        re.fullmatch(r"\.\.\. \d+ more lines: enlarge the terminal", line) for line in shown
    ), shown


def test_a_watch_goes_on_when_the_record_cannot_be_read_for_a_while(
    on: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from provisioner.answers import status
    from provisioner.store import StoreError

    facts_of, times = status.facts_of, []

    def sometimes(*args: object) -> object:
        times.append(1)
        if len(times) == 1:
            raise StoreError("database or disk is full")
        if len(times) == 3:
            raise KeyboardInterrupt
        return facts_of(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(status, "facts_of", sometimes)
    monkeypatch.setattr(time, "sleep", lambda s: None)
    ran = on("status", "--watch")
    assert ran.code == Exit.INTERRUPTED and len(times) == 3
    assert "database or disk is full" in ran.err and "Troubles" in ran.out


def test_drones_filters_sorts_and_limits(on: Cli) -> None:
    assert on("drones", "--ended", "-o", "name").lines == ["kit-ab12-2"]
    assert on("drones", "--state", "failed", "-o", "name").lines == ["kit-ab12-2"]
    assert len(on("drones", "--all", "-o", "name").lines) == 4
    assert on("drones", "--all", "--sort", "-jobs,id", "-o", "name", "-n", "2").lines == [
        "kit-ab12-1",
        "kit-ab12-2",
    ]
    several = ("--type", "topas/a100", "--state", "busy", "--state", "idle")
    assert on("drones", *several, "-o", "name").lines == ["kit-ab12-1", "kit-ab12-3"]
    assert "2 of 3 shown" in on("drones", "-n", "2").err
    none = on("drones", "--site", "horeka")
    assert none.code == Exit.OK and "0 live drones; site horeka" in none.err


@pytest.mark.parametrize("any_id", ["kit-ab12-1", "1", "8810.0", "slot1@gpu07.example.org"])
def test_every_id_means_the_drone_and_show_tells_its_life(on: Cli, any_id: str) -> None:
    tree = on("drones", "show", any_id, "-o", "json").json
    assert (tree["id"], tree["gpus_offline"]) == ("kit-ab12-1", 1)
    assert [step["state"] for step in tree["history"]] == ["requested", "submitted", "busy"]
    assert [step["for_s"] for step in tree["history"]] == [3.0, 497.0, None]
    assert tree["history"][0]["reason"]["kind"] == "jobs-waiting"


def _requests(reader: Reader) -> list[Request]:
    found = reader.snapshot()
    assert found is not None
    return [(r.kind, r.drone_ids, r.reason, r.mode) for r in found.requests]


Request = tuple[RequestKind, tuple[str, ...], str, DrainMode]
ONE, BOTH = ("kit-ab12-1",), ("kit-ab12-1", "kit-ab12-3")
KILL_ONE: Request = (RequestKind.KILL, ONE, "x", DrainMode.PEACEFUL)


@pytest.mark.parametrize(
    ("words", "code", "said", "recorded"),
    [
        (
            "drain 8810.0 --mode fast",
            Exit.OK,
            "no controller runs",
            [(RequestKind.DRAIN, ONE, "x", DrainMode.FAST)],
        ),
        ("kill 1 3", Exit.USAGE, "kill 2 drones: kit-ab12-1, kit-ab12-3?", []),
        (
            "kill 1 3 --yes",
            Exit.OK,
            "request 1 recorded",
            [(RequestKind.KILL, BOTH, "x", DrainMode.PEACEFUL)],
        ),
        ("drain --site topas --dry-run", Exit.OK, "would drain", []),
        ("kill 1 nobody", Exit.PARTIAL, "no drone `nobody` on record", [KILL_ONE]),
        ("kill 2", Exit.OK, "already ended", []),
        ("kill 1 --wait --timeout 0", Exit.TIMED_OUT, "not ended: kit-ab12-1", [KILL_ONE]),
    ],
)
def test_a_request_is_recorded_for_the_next_tick(
    on: Cli, reader: Reader, words: str, code: Exit, said: str, recorded: list[Request]
) -> None:
    ran = on("drones", *words.split(), "--reason", "x")
    assert ran.code == code and said in ran.err
    assert _requests(reader) == recorded
    assert ran.lines == (["kit-ab12-1", "kit-ab12-3", "kit-ab12-4"] if "--dry-run" in words else [])


@pytest.mark.parametrize(("job", "class_id"), [("204.2", "7"), ("207.3", "11"), ("300", "11")])
def test_explain_job_finds_the_class_by_its_id(on: Cli, job: str, class_id: str) -> None:
    assert on("explain", "job", job, "-o", "json").json["id"] == class_id


@pytest.mark.parametrize(
    ("any_id", "verb"),
    [
        ("kit-ab12-1", "explain drone"),
        ("204.2", "explain job"),
        ("topas", "sites show"),
    ],
)
def test_explain_finds_out_what_an_id_means(on: Cli, any_id: str, verb: str) -> None:
    ran = on("explain", any_id, "-o", "json")
    asked = on(*verb.split(), any_id, "-o", "json").json
    assert ran.code == Exit.OK and ran.json.keys() == asked.keys()
    for key in ("schema", "id", "site"):
        assert ran.json.get(key) == asked.get(key)


def test_explain_job_of_a_routed_job_shows_its_routed_copy(on: Cli) -> None:
    ran = on("explain", "job", "180")
    assert "job 180.0 is routed, and its routed copy counts: job 204.2" in ran.err
    assert on("explain", "job", "180.0", "-o", "json").json["id"] == "7"
    assert "job 181.0 is unknown" in on("explain", "job", "181.0").err, "its copy is not there"


def test_explain_job_says_when_it_does_not_know_or_cannot_tell(on: Cli) -> None:
    unknown = on("explain", "job", "999.0")
    assert unknown.code == Exit.FAILED
    assert "job 999.0 is unknown" in unknown.err and "no drone type without GPUs" in unknown.err
    assert "shortened for classes 11" in unknown.err
    several = on("explain", "job", "207")
    assert several.code == Exit.FAILED
    assert "may be in 2 classes: alice: 1 GPU (7); eve: 0.5 GPU (11)" in several.err
    assert "is not a job id" in on("explain", "job", "x; rm -rf /").err


def test_explain_drone_says_why_how_long_and_what_then(on: Cli) -> None:
    tree = on("explain", "drone", "3", "-o", "json").json
    assert tree["state"] == "idle"
    assert (tree["limit"], tree["limit_s"]) == ("idle_timeout_s", 600.0)
    assert tree["limit_by"] == "the configured timeout"
    assert "10m (the configured timeout)" in on("drones", "show", "3").out
    assert tree["then"].startswith("the pool is asked to release it")
    assert tree["history"][-1]["reason"]["kind"] == "seen-in-pool"


def test_same_snapshot_same_plan_and_another_one_is_told_place_by_place(
    on: Cli, tmp_path: Path
) -> None:
    snapshot, expected = tmp_path / "snapshot.json", tmp_path / "plan.json"
    saved = on("snapshot", "--to", snapshot)
    assert (saved.code, saved.out) == (Exit.OK, "")
    expected.write_text(on("replay", snapshot, "-o", "json").out)
    ran = on("replay", snapshot, "--expect", expected)
    assert ran.code == Exit.OK and "the plan is the same" in ran.err
    plan = json.loads(expected.read_text())
    plan["plan"]["tick"] += 1
    expected.write_text(json.dumps(plan))
    ran = on("replay", snapshot, "--expect", expected)
    assert (
        ran.code == Exit.UNMET
        and "the plan differs" in ran.err
        and '+ "tick": ' in " ".join(ran.err.split())
    )


def test_plan_leaves_out_a_class_that_the_planner_fails_on(
    on: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with a traceback."""
    from provisioner import planner

    def fails(allocation: Allocation) -> Placement:
        if any(job.id == "7" for job in allocation.context.classes):
            raise ZeroDivisionError("integer division or modulo by zero")
        return place(allocation)

    monkeypatch.setattr(planner, "place", fails)
    ran = on("plan")
    assert ran.code == Exit.OK
    assert "Traceback" not in ran.err
    said = {
        row["subject"]: row["reason"]["kind"]
        for row in on("plan", "-o", "json").json["items"]
        if row["reason"]
    }
    assert said["class:7"] == "planner-failed"
    assert said["class:9"] == "nothing-fits"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "not JSON"),
        ('{"schema": "provisioner.snapshot/99"}', "this version reads"),
        ('{"now": "yesterday"}', "not a snapshot: now"),
    ],
)
def test_a_file_that_is_no_snapshot_is_told_so(
    on: Cli, tmp_path: Path, content: str, complaint: str
) -> None:
    (tmp_path / "x.json").write_text(content)
    ran = on("replay", tmp_path / "x.json")
    assert ran.code == Exit.FAILED
    assert complaint in ran.err and "Traceback" not in ran.err


def test_following_events_goes_on_until_interrupted(record: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "provisioner.cli",
        "events",
        "--follow",
        "-o",
        "jsonl",
        "--store",
        str(record),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None and following.stderr is not None
        first = json.loads(following.stdout.readline())
        following.send_signal(signal.SIGINT)
        assert following.wait(timeout=30) == Exit.INTERRUPTED
        assert "Traceback" not in following.stderr.read()
    assert first["name"]


def test_a_reader_that_stops_reading_ends_a_verb_without_a_traceback(record: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "provisioner.cli",
        "events",
        "-o",
        "jsonl",
        "--store",
        str(record),
    ]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (-signal.SIGPIPE, "")


CONTROLLER = """
import asyncio, signal, sys, time
from pathlib import Path
from provisioner.store.writer import SqlStore

async def main(path, name):
    async with SqlStore(Path(path), "kit", 1e9, 10) as store:
        hangup = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
        print("ready", flush=True)
        await hangup.wait()
        await store.event(time.time(), name, {"problems": "site.yaml:3:1: unknown key\\nsite.yaml:4:1: another"})
        await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def held(record: Path, event: str) -> Iterator[int]:
    """Have a process hold the record that records ``event`` when it gets SIGHUP; yield its id."""
    command = [sys.executable, "-c", CONTROLLER, str(record), event]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
        try:
            assert controller.stdout is not None and controller.stdout.readline() == "ready\n"
            yield controller.pid
        finally:
            controller.kill()


@pytest.mark.parametrize(
    ("event", "timeout", "code"),
    [
        ("config.reloaded", "30", Exit.OK),
        ("config.rejected", "30", Exit.UNMET),
        ("other", "0.3", Exit.TIMED_OUT),
    ],
)
def test_reload_waits_for_the_answer_of_the_controller(
    cli: Cli, record: Path, event: str, timeout: str, code: Exit
) -> None:
    with held(record, event) as pid:
        ran = cli("reload", "--store", record, "--timeout", timeout)
    assert ran.code == code and f"process {pid}" in ran.err
    assert ("site.yaml:4:1: another" in ran.err) is (code is not Exit.TIMED_OUT)


def test_reload_by_another_user_says_who_may(
    cli: Cli, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with held(record, "other"), monkeypatch.context() as patched:
        patched.setattr("os.kill", refused)
        ran = cli("reload", "--store", record, "--timeout", "1")
    assert ran.code == Exit.FAILED and "to another user: run this verb as that user" in ran.err
    assert "--url unix:" in ran.err and "Errno" not in ran.err


def test_reload_signals_no_process_that_only_has_the_number_of_the_controller(
    cli: Cli, record: Path
) -> None:
    """A controller in a container with the host's name has a number there, which another process has here."""
    lock = record.with_name(record.name + ".lock")
    with held(record, "other") as pid, subprocess.Popen(["sleep", "60"]) as stranger:
        lock.write_text(lock.read_text().replace(f'"pid": {pid}', f'"pid": {stranger.pid}'))
        ran = cli("reload", "--store", record, "--timeout", "1")
        unharmed = stranger.poll() is None
        stranger.kill()
    assert ran.code == Exit.FAILED and "container" in ran.err and unharmed


def _configuration(place: Path) -> Path:
    """A small configuration that is valid: the embedded overlay and one site on this host."""
    path = place / "provisioner.yaml"
    path.write_text(
        "controller: kit\nstore: {path: record.db}\noverlay: {adapter: embedded, options: {path: queue.db}}\n"
        "sites: [topas.yaml]\npolicy: {interval: 1s, active_interval: 500ms, idle_timeout: 10s}\n"
    )
    (place / "topas.yaml").write_text(
        "site: topas\nadapter: local\noptions: {root: drones, gpus: [{count: 2}]}\n"
        "types:\n  a100: {gpus: 1, cpus: 1, memory: 1 GiB, disk: 1 MiB}\n"
    )
    return path


@pytest.mark.parametrize(
    ("file", "was", "now", "code", "said"),
    [
        ("provisioner.yaml", "kit", "kit", Exit.OK, None),
        (
            "provisioner.yaml",
            "kit",
            "kot",
            Exit.UNMET,
            "provisioner.yaml:1:13: `kot`: 3 live drones on record",
        ),
        (
            "topas.yaml",
            "site: topas",
            "site: topaz",
            Exit.UNMET,
            "provisioner.yaml:4:1: `sites`: site `topas` was rem",
        ),
        (
            "topas.yaml",
            "a100",
            "a200",
            Exit.OK,
            "topas.yaml:4:1: warning: type `a100` was removed or renamed: its 3",
        ),
    ],
    ids=["same", "controller", "site", "type"],
)
def test_check_compares_the_configuration_with_the_drones_on_record(
    cli: Cli, record: Path, file: str, was: str, now: str, code: Exit, said: str | None
) -> None:
    path = _configuration(record.parent).with_name(file)
    path.write_text(path.read_text().replace(was, now))
    ran = cli("check")
    assert ran.code == code, ran.out + ran.err
    assert (said in ran.out + ran.err) if said else "warning" not in ran.err


def test_check_says_when_it_cannot_read_the_record(cli: Cli, tmp_path: Path) -> None:
    _configuration(tmp_path)
    (tmp_path / "record.db").write_bytes(b"no record" * 200)
    ran = cli("check")
    assert ran.code == Exit.OK
    assert "provisioner.yaml:2:9: warning: not compared with the drones on record" in ran.err


def test_one_tick_of_the_controller_and_a_look_at_all_it_sees(tmp_path: Path) -> None:
    path = _configuration(tmp_path)
    assert process("submit", "-c", path, "--gpus", "8", "true").returncode == Exit.OK
    looks = process("check", path, "--live", "-o", "json")
    assert looks.returncode == Exit.OK, looks.stderr
    tree = json.loads(looks.stdout)
    jsonschema.validate(tree, SCHEMAS[tree["schema"]])
    assert [(x["view"], x["ok"]) for x in tree["items"]] == [
        ("overlay", True),
        ("site:topas", True),
    ]
    ran = process("run", path, "--once")
    assert (ran.returncode, ran.stdout) == (Exit.OK, ""), ran.stderr
    status = json.loads(process("status", "-c", path, "-o", "json").stdout)
    assert (status["tick"], status["running"], status["live_drones"]) == (1, False, 0)
    (job_class,) = json.loads(process("demand", "-c", path, "-o", "json").stdout)["items"]
    assert (
        job_class["reasons"][0]["kind"] == "nothing-fits"
        and job_class["reasons"][0]["dimension"] == "gpus"
    )
    explained = json.loads(process("explain", "job", "1", "-c", path, "-o", "json").stdout)
    assert explained["types"][0]["dimension"] == "gpus"


def test_check_live_says_when_the_record_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    path = _configuration(tmp_path)
    (tmp_path / "state").write_text("")
    path.write_text(path.read_text().replace("record.db", "state/deep/record.db"))
    ran = cli("check", "--live", "-o", "json")
    assert ran.code == Exit.UNMET
    (gap,) = [poll for poll in ran.json["items"] if poll["dimension"]]
    assert (gap["view"], gap["dimension"]) == ("store", "directory") and "Not a directory" in gap[
        "text"
    ]


def test_a_running_controller_kills_what_it_is_told_to(cli: Cli, tmp_path: Path) -> None:
    path = _configuration(tmp_path)
    process("submit", "-c", path, "sleep", "600")
    command = [sys.executable, "-m", "provisioner.cli", "run", "-c", str(path)]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log) as controller:
        try:
            assert _in_time(
                lambda: cli("drones", "-c", path, "--state", "busy", "-o", "name").lines
            )
            assert cli("status", "-c", path, "-o", "json").json["pid"] == controller.pid
            (drone,) = cli("drones", "-c", path, "-o", "name").lines
            killed = cli(
                "drones",
                "kill",
                drone,
                "-c",
                path,
                "--reason",
                "enough",
                "--wait",
                "--timeout",
                "60",
            )
            assert killed.code == Exit.OK, killed.err
            life = " ".join(cli("drones", "show", drone, "-c", path).out.split())
            assert "requested by" in life and "enough" in life
        finally:
            remove(tmp_path / "queue.db", [1])  # or a new drone would start for it
            for left in cli("drones", "-c", path, "-o", "name").lines:
                cli(
                    "drones",
                    "kill",
                    left,
                    "-c",
                    path,
                    "--reason",
                    "end of test",
                    "--wait",
                    "--timeout",
                    "30",
                )
            controller.terminate()
            controller.wait(timeout=30)
    assert controller.returncode == 0


def _in_time(seen: Callable[[], object], within_s: float = 60.0) -> object:
    deadline = time.monotonic() + within_s
    while not (found := seen()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def test_run_with_a_broken_configuration_tells_every_problem(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "provisioner.yaml"
    path.write_text("controller: [1]\nstroe: {}\n")
    ran = cli("run", path)
    assert ran.code == Exit.UNMET
    assert "provisioner.yaml:2:1" in ran.err and "Traceback" not in ran.err


def test_the_record_is_found_by_option_environment_and_configuration(
    cli: Cli, record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "a" / "provisioner.yaml"
    config.parent.mkdir()
    config.write_text(f"store:\n  path: ../{record.name}\n")
    assert cli("drones", "--config", config).code == Exit.OK  # relative to the file, not to here
    for name, value in (("STORE", record), ("CONFIG", config)):
        with monkeypatch.context() as environment:
            environment.setenv(f"PROVISIONER_{name}", str(value))
            assert cli("drones").code == Exit.OK
    monkeypatch.chdir(config.parent)
    assert cli("drones").code == Exit.OK


def test_user_mistakes_have_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "junk.db").write_bytes(b"this is no database" * 1000)
    for words, code, complaint in [
        (["drones", "--store", tmp_path / "none.db"], Exit.FAILED, "no record at"),
        (["drones", "--store", tmp_path], Exit.FAILED, "is a directory"),
        (["drones", "--store", tmp_path / "junk.db"], Exit.FAILED, "junk.db"),
        (["drones"], Exit.FAILED, "no configuration found"),
        (["drones", "-c", tmp_path / "none.yaml"], Exit.FAILED, "no configuration at"),
        (["drones", "show"], Exit.USAGE, "Missing argument"),
    ]:
        ran = process(*words, cwd=tmp_path)
        assert (ran.returncode, ran.stdout) == (code, ""), words
        assert complaint in ran.stderr and "Traceback" not in ran.stderr, ran.stderr


@pytest.mark.parametrize("line", ["events --since all -o json | true", "drones >&-", "status >&-"])
def test_a_reader_that_goes_away_or_is_not_there_ends_it_quietly(record: Path, line: str) -> None:
    command = f"PROVISIONER_STORE={record} {sys.executable} -m provisioner.cli {line}"
    ran = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0
    assert ran.stderr == "" if "true" in line else "Traceback" not in ran.stderr


def test_listing_drones_imports_nothing_heavy(record: Path) -> None:
    program = (
        "import sys; from provisioner.cli import main\n"
        f"code = main(['drones', '--store', {str(record)!r}])\n"
        "heavy = {'aiohttp', 'asyncio', 'htcondor2', 'rich', 'yaml', 'structlog'}\n"
        "heavy |= {'provisioner.serialization', 'provisioner.config', 'provisioner.planner'}\n"
        "print(sorted(heavy & set(sys.modules)), code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[] 0"


def test_schema_prints_every_schema_it_names(cli: Cli) -> None:
    names = cli("schema").lines
    assert {"controller", "site", "provisioner.drones/1"} < set(names)
    for name in names:
        jsonschema.Draft202012Validator.check_schema(cli("schema", name).json)
    wrong = cli("schema", "provisioner.drone")
    assert wrong.code == Exit.FAILED and "did you mean `provisioner.drone/1`?" in wrong.err
