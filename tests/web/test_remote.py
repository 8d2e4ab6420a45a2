"""The command line as a client: verbs with ``--url`` against a running service, and what they say of mistakes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioner.answers.errors import Exit, VerbError
from provisioner.cli.options import Where
from provisioner.cli.remote import bearer_token
from provisioner.model import RequestKind
from provisioner.store.reader import Reader
from tests.cli.conftest import Ran
from tests.web.conftest import ME, Serve, Served

VERBS = [
    "status",
    "drones",
    "drones --all --sort -id --limit 2 -o wide",
    "drones --site topas --state idle -o csv --columns id,site",
    "drones show 1 -o json",
    "drones show slot1@gpu07.example.org",
    "sites -o yaml",
    "sites show topas --no-header",
    "demand --waiting -o name",
    "explain job 204.2",
    "explain class 9",
    "explain drone 1 -o json",
    "plan",
    "events --since all -o jsonl",
    "usage --by type",
    "estimates",
]


async def remote(
    served: Served, *words: str, url: str | None = None, stdin: bytes = b"", **env: str
) -> Ran:
    """Run the command line as a process, without a record of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PROVISIONER_", "BEARER_"))
    }
    env = {**kept, "COLUMNS": "100", "PROVISIONER_URL": url or f"unix:{served.path}", **env}
    command = [sys.executable, "-m", "provisioner.cli", *words]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=-1, stdout=-1, stderr=-1, env=env, cwd="/"
    )
    out, err = await process.communicate(stdin)
    return Ran(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture
def in_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


pytestmark = pytest.mark.usefixtures("in_tree")


@pytest.mark.parametrize("words", VERBS)
async def test_a_verb_prints_what_it_prints_on_the_host(
    serve: Serve, record: Path, words: str
) -> None:
    served = await serve()
    there, here = (
        await remote(served, *words.split()),
        await remote(served, *words.split(), "--store", str(record), url=""),
    )
    assert there.code == Exit.OK, there.err
    assert without_seconds(there) == without_seconds(here)


def without_seconds(ran: Ran) -> tuple[int, list[str], list[str]]:
    """Both run some seconds apart, so that ages differ, and the widths of columns by them."""

    def words(text: str) -> list[str]:
        return [word for word in text.split() if not any(letter.isdigit() for letter in word)]

    return ran.code, words(ran.out), words(ran.err)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("drones show 999", Exit.FAILED, "no drone `999` on record"),
        ("sites show tpoas", Exit.FAILED, "did you mean `topas`?"),
        ("drones --columns nosuch", Exit.USAGE, "no column `nosuch`"),
        ("events --since nonsense", Exit.USAGE, "--since"),
        ("events --follow -o csv", Exit.USAGE, "--follow writes"),
        ("events --follow --since nonsense", Exit.USAGE, "--since"),
        ("events --follow --after nonsense", Exit.USAGE, "--after"),
        ("events --follow --since 2h", Exit.USAGE, "use --after, or remove --url"),
        ("status --local", Exit.USAGE, "--local does not work with --url"),
        ("snapshot", Exit.FAILED, "without --url"),
        ("sites enable topas --reason x", Exit.UNMET, "is not disabled"),
        ("drones kill 999 --reason x", Exit.FAILED, "no drone `999`"),
        ("drones kill 1 998 999 --yes --reason x", Exit.PARTIAL, "no drone `998`"),
        ("drones kill 1 --wait --reason x", Exit.USAGE, "--wait"),
        ("drones kill --site topas --reason x", Exit.USAGE, "add --yes"),
    ],
)
async def test_a_mistake_has_the_exit_code_of_the_host(
    serve: Serve, words: str, code: Exit, said: str
) -> None:
    ran = await remote(await serve(), *words.split())
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert said in ran.err and "Traceback" not in ran.err


async def test_changes_are_on_record_by_the_account(serve: Serve, record: Path) -> None:
    served = await serve()
    for words in (
        "drones drain --site topas --state idle --mode fast --reason fan --yes",
        "drones kill 1 --reason hung",
        "sites disable topas --reason cooling",
        "sites enable topas --reason cool",
        "sites reset horeka --reason repaired",
        "reload",
    ):
        ran = await remote(served, *words.split())
        assert ran.code == Exit.OK and "recorded" in ran.err and "no controller runs" in ran.err, (
            ran.err
        )
    kinds = [request.kind for request in Reader(record).requests()]
    K = RequestKind
    assert kinds == [K.DRAIN, K.KILL, K.DISABLE, K.ENABLE, K.RESET, K.RELOAD]
    assert {request.by for request in Reader(record).requests()} == {ME}


async def test_events_are_followed(serve: Serve, record: Path) -> None:
    served = await serve()
    env = {**os.environ, "PROVISIONER_URL": f"unix:{served.path}"}
    command = [sys.executable, "-m", "provisioner.cli", "events", "--follow"]
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, env=env)
    async with asyncio.timeout(30):
        while not served.service.stream._clients:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        Reader(record).ask(RequestKind.RELOAD, [], reason="new limits", by="anna", at=1e9)
        assert process.stdout
        line = await process.stdout.readline()
        assert b"request.recorded: anna requested reload of the configuration: new limits" in line
    process.terminate()
    await process.wait()


async def test_events_are_followed_from_a_position(serve: Serve, record: Path) -> None:
    served = await serve()
    env = {**os.environ, "PROVISIONER_URL": f"unix:{served.path}"}
    command = [sys.executable, "-m", "provisioner.cli", "events", "--follow", "--after", "0.0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, env=env)
    assert process.stdout
    async with asyncio.timeout(30):
        line = await process.stdout.readline()
        assert b"config.reloaded: the changed configuration is in force: max_drones" in line
    process.terminate()
    await process.wait()


async def test_a_service_that_closes_early_is_told(serve: Serve, tmp_path: Path) -> None:
    place = tmp_path / "early.sock"

    async def closed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    words = ("drones", "kill", "1", "--reason", "hung")
    async with await asyncio.start_unix_server(closed, place):
        ran = await remote(await serve(), *words, url=f"unix:{place}")
    assert ran.code == Exit.FAILED and "no answer from unix:" in ran.err


async def test_nobody_there_is_told(serve: Serve, tmp_path: Path) -> None:
    served = await serve()
    for url, said in (
        (f"unix:{tmp_path}/none", "is `provisioner serve` running there?"),
        ("http://127.0.0.1:1", "is `provisioner serve` running there?"),
        ("ftp://x", "write https://HOST:PORT or unix:PATH"),
        ("https://x:port", "--url https://x:port: Port could not be cast"),
        ("https://[::1", "--url https://[::1: Invalid IPv6 URL"),
    ):
        ran = await remote(served, "status", url=url)
        assert (
            ran.code in (Exit.FAILED, Exit.USAGE) and said in ran.err and "Traceback" not in ran.err
        )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"302 Found\r\nLocation: https://sso.example.edu/",
            "answers 302 Found, and is no provisioner",
        ),
        (
            b"200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p/>",
            "is no provisioner",
        ),
        (
            b'400 Bad\r\nContent-Length: 34\r\n\r\n{"detail": "x", "exit_code": 9999}',
            "is no provisioner",
        ),
        (
            b"200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
            "no whole answer",
        ),
    ],
)
async def test_an_answer_of_something_else_is_no_success(answer: bytes, said: str) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + answer + (b"" if b"\r\n\r\n" in answer else b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        command = [sys.executable, "-m", "provisioner.cli", "drones", "kill", "1", "--reason", "x"]
        env = {**os.environ, "PROVISIONER_URL": f"http://127.0.0.1:{port}"}
        process = await asyncio.create_subprocess_exec(
            *command, stdout=-1, stderr=-1, env=env, cwd="/"
        )
        told = (await process.communicate())[1].decode()
    assert process.returncode == Exit.FAILED and said in told and "Traceback" not in told


async def test_following_ends_when_the_token_is_refused_and_not_when_the_service_restarts() -> None:
    problem = b'{"detail": "token refused: Signature has expired", "exit_code": 1}'
    answers = [
        b"200 OK\r\nContent-Type: text/event-stream\r\n\r\nid: 3.1\n\n",
        b"503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}",
        b"200 OK\r\nContent-Type: text/event-stream\r\n\r\nid: 4.1\n\n",
        b"401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(problem), problem),
    ]

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + answers.pop(0))
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        env = {
            **os.environ,
            "PROVISIONER_URL": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
        }
        command = [sys.executable, "-m", "provisioner.cli", "events", "--follow"]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=-1, stderr=-1, env=env, cwd="/"
        )
        async with asyncio.timeout(60):
            told = (await process.communicate())[1].decode()
    assert process.returncode == Exit.FAILED and "token refused" in told and not answers


async def test_loopback_may_look_alone(serve: Serve, record: Path) -> None:
    served = await serve()
    assert (await remote(served, "status", url=served.url)).code == Exit.OK
    ran = await remote(served, "drones", "kill", "1", "--reason", "x", url=served.url)
    assert ran.code == Exit.FAILED and "use a token" in ran.err
    assert not Reader(record).requests()


def test_tokens_are_found_as_the_wlcg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**where: Any) -> str:
        return bearer_token(Where(**{"url": "https://drones.example.edu", **where}))

    file = tmp_path / f"bt_u{os.geteuid()}"
    for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file.write_text("runtime\n")
    assert found() == "runtime"
    (tmp_path / "named").write_text("named\n")
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(tmp_path / "named"))
    assert found() == "named"
    monkeypatch.setenv("BEARER_TOKEN", " given ")
    assert found() == "given"
    assert found(token_file=file) == "runtime"
    assert found(url="http://drones.example.edu") == "", "not in the clear"
    assert found(url="unix:/run/web.sock") == ""
    assert found(url="http://127.0.0.1:8618", token_file=file) == "runtime"
    with pytest.raises(VerbError, match="in the clear"):
        found(url="http://drones.example.edu", token_file=file)


async def test_a_file_that_holds_no_token_is_not_sent(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("-----BEGIN-----\nsecret\n")
    ran = await remote(await serve(), "status", "--token-file", str(tmp_path / "key"))
    assert (
        ran.code == Exit.FAILED
        and "is not one line of ASCII" in ran.err
        and "secret" not in ran.err
    )
