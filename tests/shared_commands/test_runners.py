"""What holds for every way to run a command, here and over ssh: bytes, arguments, ends, deadlines, files."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from adapters.shared import parcel
from adapters.shared.commands.local import LocalRunner, own_environment, runner_for
from adapters.shared.commands.runner import MAX_OUTPUT_BYTES, NoReplyError, Runner
from adapters.shared.commands.settings import SshSettings
from adapters.shared.commands.ssh import SshRunner
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind
from tests.labs.htcondor import until
from tests.shared_commands.sshd import Sshd

SPELL = ["printf", "%s\\0"]
"""Prints each of its arguments with NUL after it."""


@pytest.fixture(params=["local", "ssh"])
async def runner(request: pytest.FixtureRequest) -> AsyncIterator[Runner]:
    if request.param == "local":
        async with LocalRunner(own_environment()) as local:
            yield local
    else:
        server: Sshd = request.getfixturevalue("sshd")
        async with SshRunner(server.settings()) as ssh:
            yield ssh


async def test_bytes_go_in_and_come_out_as_they_are(runner: Runner) -> None:
    every = bytes(range(256)) * 4096
    done = await runner.run(
        ["sh", "-c", "cat; printf 'x\\0y' >&2; exit 3"], stdin=every, deadline_s=30
    )
    assert (done.code, done.out, done.err) == (3, every, b"x\0y")


async def test_a_command_that_does_not_read_its_input_is_no_error(runner: Runner) -> None:
    done = await runner.run(["true"], stdin=b"x" * 2_000_000, deadline_s=30)
    assert (done.code, done.out) == (0, b"")


@pytest.mark.parametrize("script", ["exit 255", "kill -KILL $$", "exit 137"])
async def test_the_status_of_a_broken_ssh_and_an_end_by_signal_are_no_answer(
    runner: Runner, script: str
) -> None:
    with pytest.raises(NoReplyError, match="`sh`"):
        await runner.run(["sh", "-c", f"echo half an answer; {script}"], deadline_s=30)


@pytest.mark.parametrize(
    "prefix", [(), ("-u", "SQUEUE_USERS"), ("-u", "A", "-u", "B", "SLURM_TIME_FORMAT=%s", "X=")]
)
async def test_errors_name_the_program_that_env_runs(
    runner: Runner, prefix: tuple[str, ...]
) -> None:
    with pytest.raises(NoReplyError, match="`sleep` gave no answer within"):
        await runner.run(["env", *prefix, "sleep", "60"], deadline_s=1)
    with pytest.raises(NoReplyError, match=r"`sh` (ended with 255|was ended by a signal)"):
        await runner.run(["env", *prefix, "sh", "-c", "exit 255"], deadline_s=30)
    with pytest.raises(UnavailableError, match="`condor_nothing` cannot be run there"):
        await runner.run(["env", *prefix, "condor_nothing", "a=b"], deadline_s=30)


async def test_a_program_that_is_not_there_was_certainly_not_run(runner: Runner) -> None:
    with pytest.raises(UnavailableError, match="`condor_nothing` cannot be run") as caught:
        await runner.run(["condor_nothing", "-x"], deadline_s=30)
    assert not isinstance(caught.value, NoReplyError)
    assert caught.value.kind is FaultKind.CONFIG


async def test_who_is_silent_is_killed_at_the_deadline(runner: Runner) -> None:
    """And it is told that the command may have run."""
    mark = f"97531.{os.getpid()}"
    with pytest.raises(NoReplyError, match="no answer within 1 s"):
        await runner.run(["sh", "-c", f"echo begun; sleep {mark}; true"], deadline_s=1)
    await asyncio.to_thread(until, lambda: not sleeping(mark), 10, what="the sleeper is gone")


def sleeping(mark: str) -> bool:
    return any(mark in " ".join(words) for words in command_lines())


def command_lines() -> Iterator[list[str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                yield (entry / "cmdline").read_text(errors="replace").split("\0")


async def test_an_endless_answer_is_cut_short(runner: Runner) -> None:
    with pytest.raises(NoReplyError, match=f"more than {MAX_OUTPUT_BYTES // 1024**2} MiB"):
        await runner.run(["yes", "x" * 1000], deadline_s=60)
    assert (await runner.run(["echo", "on"], deadline_s=30)).out == b"on\n"


ARGUMENTS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
    min_size=1,
    max_size=6,
)


@given(argument=ARGUMENTS)
@example(
    argument=[
        "",
        " ",
        "'",
        '"',
        "$(id)",
        "`id`",
        "a;b",
        "&",
        "|",
        "\n",
        "\\",
        "~",
        "*",
        "!",
        "#",
        "-n",
        "é\t€",
    ]
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_argument_is_read_by_a_shell_on_the_way(sshd: Sshd, argument: list[str]) -> None:
    """What is asked for comes from ads too: whatever the characters, they arrive as they left."""

    async def there_and_back() -> bytes:
        async with SshRunner(sshd.settings()) as runner:
            return (await runner.run([*SPELL, *argument], deadline_s=30)).out

    assert asyncio.run(there_and_back()).decode().split("\0")[:-1] == argument


async def listing(runner: Runner, directory: str) -> dict[str, str]:
    done = await runner.run(["find", directory, "-type", "f", "-printf", "%P %m\\n"], deadline_s=30)
    return dict(line.split() for line in done.out.decode().splitlines())


async def test_files_are_put_whole_and_private_and_taken_away(
    runner: Runner, tmp_path: Path
) -> None:
    where = str(tmp_path / "batch") if isinstance(runner, LocalRunner) else "work/batch"
    content = {
        "drone.sh": b"#!/bin/sh\n",
        "token": b"\0secret\xff",
        "checks/gpu.sh": b"exit 0\n",
        "empty": b"",
    }
    for _ in range(2):  # putting the same again changes nothing
        await parcel.put(runner, where, content, executable=["drone.sh"], deadline_s=30)
        found = await listing(runner, where)
        assert {k: v for k, v in found.items() if not k.startswith("put.")} == {
            "drone.sh": "700",
            "token": "600",
            "checks/gpu.sh": "600",
            "empty": "600",
        }
        assert (await runner.run(["cat", f"{where}/token"], deadline_s=30)).out == b"\0secret\xff"
        assert (await runner.run(["stat", "-c", "%a", where], deadline_s=30)).out == b"700\n"
    await parcel.put(runner, where, {"token": b"new"}, deadline_s=30)
    assert set(await listing(runner, where)) - {"token"} == {
        k for k in await listing(runner, where) if k[:4] == "put."
    }
    assert (await runner.run(["cat", f"{where}/token"], deadline_s=30)).out == b"new"
    beside = await runner.run(["ls", str(Path(where).parent)], deadline_s=30)
    assert beside.out == b"batch\n", "no half-made directory is left"
    for _ in range(2):
        await parcel.remove(runner, where, deadline_s=30)
    assert (await runner.run(["ls", str(Path(where).parent)], deadline_s=30)).out == b""


async def test_directories_that_a_put_makes_are_private(runner: Runner, tmp_path: Path) -> None:
    above = str(tmp_path / "new") if isinstance(runner, LocalRunner) else "new"
    await parcel.put(runner, f"{above}/batch", {"checks/gpu.sh": b"exit 0\n"}, deadline_s=30)
    found = await runner.run(["find", above, "-type", "d", "-printf", "%f %m\\n"], deadline_s=30)
    assert sorted(found.out.decode().splitlines()) == ["batch 700", "checks 700", "new 700"]


async def test_the_same_put_side_by_side_is_there_once_and_whole(
    runner: Runner, tmp_path: Path
) -> None:
    content = {"drone.sh": b"#!/bin/sh\n" * 1000, "token": b"secret"}
    for n in range(5):
        where = (
            str(tmp_path / f"{n}" / "batch")
            if isinstance(runner, LocalRunner)
            else f"side-{n}/batch"
        )
        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(
                    parcel.put(runner, where, content, executable=["drone.sh"], deadline_s=30)
                )
        found = {name for name in await listing(runner, where) if not name.startswith("put.")}
        assert found == {"drone.sh", "token"}
        assert (await runner.run(["ls", str(Path(where).parent)], deadline_s=30)).out == b"batch\n"


async def test_nothing_is_written_or_removed_elsewhere() -> None:
    async with LocalRunner({}) as runner:
        for name in ("../up", "/etc/x", "a/../b", ".hidden", "", "a\nb", "put.0"):
            with pytest.raises(ValueError, match="no name for a file"):
                await parcel.put(runner, "somewhere", {name: b""}, deadline_s=5)
        for directory in ("", "/", "..", "../x", "/a/../b", "-x", "a b", "~"):
            with pytest.raises(ValueError, match="not a valid name of a directory"):
                await parcel.remove(runner, directory, deadline_s=5)


SSH = SshSettings.model_validate(
    {"host": "login.example.org", "user": "drones", "key": "/nowhere/id"}
)


def test_without_asyncssh_ssh_is_a_mistake_of_the_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    monkeypatch.delitem(sys.modules, "adapters.shared.commands.ssh")
    monkeypatch.delitem(sys.modules, "adapters.shared.commands.ssh_login", raising=False)
    assert isinstance(runner_for(None), LocalRunner)
    with pytest.raises(UnavailableError, match=r"install the extra `ssh`") as caught:
        runner_for(SSH)
    assert caught.value.kind is FaultKind.CONFIG


def test_an_adapter_can_be_loaded_without_asyncssh() -> None:
    program = "import sys, adapters.htcondor.site.client; sys.exit('asyncssh' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
