"""The ssh connection against a real OpenSSH server: who is let in, what is shared, what is lost and comes back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.shared.commands.runner import NoReplyError, Runner
from adapters.shared.commands.ssh import SshRunner
from provisioner.interfaces import AuthError, UnavailableError
from tests.labs.htcondor import until
from tests.shared_commands.sshd import Sshd, key_pair

NewSshd = Callable[..., Sshd]


async def said(runner: Runner, *argv: str, deadline_s: float = 20) -> str:
    done = await runner.run(argv, deadline_s=deadline_s)
    assert done.code == 0, done
    return done.out.decode()


@pytest.mark.parametrize("vouched", ["another key", "nobody", None])
async def test_a_host_that_nobody_has_vouched_for_is_not_talked_to(
    sshd: Sshd, tmp_path: Path, vouched: str | None
) -> None:
    file = tmp_path / "known_hosts"
    if vouched is not None:
        file.write_text(
            f"[127.0.0.1]:{sshd.port} {key_pair(tmp_path / 'other')}\n" if "key" in vouched else ""
        )
    before = sshd.logins()
    async with SshRunner(sshd.settings(known_hosts=file)) as runner:
        with pytest.raises(AuthError, match="fingerprint"):
            await said(runner, "true")
    assert sshd.logins() == before


async def test_a_key_with_a_passphrase_is_opened_with_it(new_sshd: NewSshd, tmp_path: Path) -> None:
    server = new_sshd()
    key = tmp_path / "locked"
    server.authorize(key_pair(key, "open sesame"))
    (tmp_path / "phrase").write_text("open sesame\n")
    (tmp_path / "wrong").write_text("open rye\n")
    async with SshRunner(
        server.settings(key=key, passphrase={"file": tmp_path / "phrase"})
    ) as runner:
        assert await said(runner, "echo", "in") == "in\n"
    for more in (
        {},
        {"passphrase": {"file": tmp_path / "wrong"}},
        {"passphrase": {"file": tmp_path / "none"}},
    ):
        async with SshRunner(server.settings(key=key, **more)) as runner:
            with pytest.raises(AuthError, match="locked"):
                await said(runner, "true")


async def test_the_keys_of_an_agent_let_us_in(
    new_sshd: NewSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, key, socket = new_sshd(), tmp_path / "id", tmp_path / "agent"
    server.authorize(key_pair(key))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    settings = server.settings(key=None, agent=True)
    async with SshRunner(settings) as runner:
        with pytest.raises(AuthError, match="no ssh agent"):
            await said(runner, "true")
    agent = await asyncio.create_subprocess_exec(
        "ssh-agent", "-D", "-a", str(socket), stdout=subprocess.DEVNULL
    )
    try:
        await asyncio.to_thread(until, socket.exists, 10)
        add = await asyncio.create_subprocess_exec(
            "ssh-add", "-q", str(key), stderr=subprocess.DEVNULL
        )
        assert await add.wait() == 0
        async with SshRunner(settings) as runner:
            assert await said(runner, "echo", "in") == "in\n"
    finally:
        agent.terminate()
        await agent.wait()


async def test_the_way_leads_through_a_jump_host(new_sshd: NewSshd) -> None:
    gate, inner = new_sshd(), new_sshd()
    inner.authorize((gate.root / "id.pub").read_text().strip())
    inner.known_hosts.write_text(inner.known_hosts.read_text() + gate.known_hosts.read_text())
    settings = inner.settings(key=gate.root / "id", jump=f"drone@127.0.0.1:{gate.port}")
    async with SshRunner(settings) as runner:
        assert await said(runner, "sh", "-c", "echo $HOME") == f"{inner.home}\n"
        assert (gate.logins(), inner.logins()) == (1, 1)
        gate.cut()
        await comes_back(runner)
        assert (gate.logins(), inner.logins()) == (2, 2)
    inner.known_hosts.write_text(inner.known_hosts.read_text().splitlines()[0])
    async with SshRunner(settings) as runner:
        with pytest.raises(AuthError, match=f"127.0.0.1:{gate.port}.*fingerprint"):
            await said(runner, "true")


async def test_a_server_that_allows_two_sessions_gets_ten_commands_done(new_sshd: NewSshd) -> None:
    """Each command runs once: a refused session was no start."""
    server = new_sshd("MaxSessions 2")
    note = server.home / "note"
    async with SshRunner(server.settings(max_sessions=10)) as runner:
        work = [
            said(runner, "sh", "-c", f"echo {n} >>{note}; sleep 0.1; echo {n}", deadline_s=60)
            for n in range(10)
        ]
        answers = await asyncio.gather(*work)
        assert answers == [f"{n}\n" for n in range(10)]
        assert await said(runner, "echo", "on") == "on\n"
    assert sorted(note.read_text().split(), key=int) == [str(n) for n in range(10)]
    assert server.logins() == 1


async def test_who_gave_up_while_waiting_for_a_turn_never_runs(new_sshd: NewSshd) -> None:
    server = new_sshd()
    note = server.home / "note"
    async with SshRunner(server.settings(max_sessions=1)) as runner:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(said(runner, "sh", "-c", "sleep 2; echo first"))
            await asyncio.sleep(0.5)
            with pytest.raises(UnavailableError, match=r"no turn within 0.5 s"):
                await runner.run(["touch", str(note)], deadline_s=0.5)
        assert first.result() == "first\n"
        assert await said(runner, "echo", "second") == "second\n"
    assert not note.exists()


async def test_a_command_that_is_cancelled_while_its_session_opens_never_runs(
    new_sshd: NewSshd,
) -> None:
    server = new_sshd()
    note = server.home / "note"
    async with SshRunner(server.settings(max_sessions=1, keepalive="60s")) as runner:
        assert await said(runner, "echo", "in") == "in\n"
        server.cut(signal.SIGSTOP)
        asked = asyncio.create_task(runner.run(["touch", str(note)], deadline_s=30))
        await asyncio.sleep(0.5)  # the server cannot open a session now
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        server.cut(signal.SIGCONT)
        assert await said(runner, "echo", "next") == "next\n"
    assert not note.exists()
    assert server.logins() == 1


async def comes_back(runner: Runner) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                assert await said(runner, "echo", "back") == "back\n"
                return
            except UnavailableError:
                await asyncio.sleep(0.05)


async def test_a_connection_cut_in_the_middle_is_no_answer_and_never_an_empty_one(
    new_sshd: NewSshd,
) -> None:
    server = new_sshd()
    note = server.home / "note"
    async with SshRunner(server.settings()) as runner:
        asked = asyncio.create_task(
            runner.run(["sh", "-c", f"echo half; touch {note}; sleep 3"], deadline_s=30)
        )
        await asyncio.to_thread(until, note.exists, 20, what="the command runs", every_s=0.02)
        server.cut()
        with pytest.raises(NoReplyError, match="connection was lost"):
            await asked
        await comes_back(runner)
    await asyncio.to_thread(until, lambda: not server.sleepers(), 20, what="the command has ended")


async def test_a_server_that_hangs_is_noticed_and_left(new_sshd: NewSshd) -> None:
    """The command never got a session there, so it may run on the next connection."""
    server = new_sshd()
    async with SshRunner(server.settings(keepalive="200ms")) as runner:
        assert await said(runner, "echo", "in") == "in\n"
        server.cut(signal.SIGSTOP)
        assert await said(runner, "echo", "hello?", deadline_s=20) == "hello?\n"
    assert server.logins() == 2


async def test_a_server_that_is_down_is_not_stormed(new_sshd: NewSshd) -> None:
    server = new_sshd()
    async with SshRunner(
        server.settings(retry="1h", retry_at_most="1h", connect_deadline="5s")
    ) as runner:
        assert await said(runner, "echo", "in") == "in\n"
        server.stop()
        reasons = []
        for _ in range(50):
            with pytest.raises(UnavailableError) as caught:
                await said(runner, "true")
            assert not isinstance(caught.value, NoReplyError) or not reasons
            reasons.append(str(caught.value))
        server.start()
        with pytest.raises(UnavailableError, match=r"not tried again before \d\d:\d\d:\d\d"):
            await said(runner, "true")
    refused = [reason for reason in reasons if "not tried again" not in reason]
    assert len(refused) <= 2, (
        "one attempt, and perhaps one command that was caught in the end of the connection"
    )
    assert server.logins() == 1


@pytest.mark.parametrize("shell", ["/bin/sh -s", "/bin/bash -s"])
async def test_a_forced_command_that_reads_its_input(new_sshd: NewSshd, shell: str) -> None:
    """What follows the first line is the command's, all of it, and never taken for commands."""
    server = new_sshd(key_options=f'command="{shell}"')
    async with SshRunner(server.settings(forced_command="stdin")) as runner:
        assert await said(runner, "echo", "a  b", "$HOME") == "a  b $HOME\n"
        trap = f"touch {server.home}/trap\n".encode() * 1000
        for argv in (["true"], ["false"], ["sh", "-c", "exit 4"], ["head", "-c", "1"]):
            await runner.run(argv, stdin=trap, deadline_s=20)
        with pytest.raises(UnavailableError):
            await runner.run(["no-such-tool"], stdin=trap, deadline_s=20)
        with pytest.raises(ValueError, match="line break"):
            await runner.run(["echo", "a\nb"], deadline_s=20)
        if "bash" in shell:  # reads byte by byte; a shell that reads ahead takes the input along
            done = await runner.run(["cat"], stdin=b"\0 all of it \xff", deadline_s=20)
            assert done.out == b"\0 all of it \xff"
    assert not (server.home / "trap").exists()
