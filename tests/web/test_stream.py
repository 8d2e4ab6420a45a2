"""The event stream: one reading for all, resumption across restarts, clients that never read."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from provisioner.model import RequestKind
from provisioner.store import StoreError
from provisioner.store.reader import Reader
from provisioner.web import stream, tokens
from tests.web.conftest import API, Serve, Served, until
from tests.web.test_identity import Issuer, bearing


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "POLL_S", 0.05)


class Listener:
    """A client of the stream that keeps what it is sent."""

    def __init__(self, served: Served, last_id: str = "") -> None:
        self.served, self.last_id, self.rows, self.comments = (
            served,
            last_id,
            list[dict[str, Any]](),
            0,
        )
        self.task: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()

    async def listen(self) -> None:
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{self.served.url}{API}/events/stream", headers=headers) as found,
        ):
            assert found.status == 200 and found.content_type == "text/event-stream"
            self.connected.set()
            async for line in found.content:
                name, _, value = line.decode().strip().partition(": ")
                if name == "id":
                    self.last_id = value
                elif name == "data":
                    self.rows.append(json.loads(value))
                elif line.startswith(b":"):
                    self.comments += 1

    async def begin(self) -> Listener:
        self.task = asyncio.create_task(self.listen())
        # One that is cut off ends with an error. If nobody asked for it, its traceback would be
        # logged whenever the garbage collector runs, and that fails within `ast.parse` (CPython
        # 3.11) of another test.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait_for(self.connected.wait(), 20)
        return self

    async def end(self) -> None:
        assert self.task
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def reasons(self) -> list[str]:
        return [row["fields"]["reason"] for row in self.rows if row["name"] == "request.recorded"]


def say(record: Path, *reasons: str) -> None:
    for reason in reasons:
        Reader(record).ask(RequestKind.RESET, [], reason=reason, by="anna", at=time.time())


async def test_all_clients_are_told_by_one_reading(
    serve: Serve, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve()
    listeners = [await Listener(served).begin() for _ in range(20)]
    read, calls = Reader.transitions, []
    monkeypatch.setattr(
        Reader, "transitions", lambda self, **how: calls.append(1) or read(self, **how)
    )
    began = asyncio.get_running_loop().time()
    say(record, "one", "two")
    await until(lambda: all(each.reasons == ["one", "two"] for each in listeners))
    polls = (asyncio.get_running_loop().time() - began) / stream.POLL_S
    assert len(calls) < 2 * polls + 5, "the number of clients does not count"
    for each in listeners:
        await each.end()
    await until(lambda: not served.service.stream._clients)


async def test_a_client_goes_on_where_it_was_after_a_restart_of_the_service(
    serve: Serve, record: Path
) -> None:
    first = await serve()
    listener = await Listener(first).begin()
    say(record, "before")
    await until(lambda: listener.reasons == ["before"])
    await listener.end()
    say(record, *(f"meanwhile {n}" for n in range(stream.PAGE_LENGTH + 10)))
    second = await serve()
    again = await Listener(second, listener.last_id).begin()
    say(record, "after")
    await until(lambda: "after" in again.reasons)
    assert again.reasons == [*(f"meanwhile {n}" for n in range(stream.PAGE_LENGTH + 10)), "after"]
    await again.end()


async def test_the_whole_story_from_the_beginning_has_everything_once(
    serve: Serve, record: Path
) -> None:
    served = await serve()
    listener = await Listener(served, "0.0").begin()
    whole = (await served.ask(f"{API}/events?since=all")).json["items"]
    await until(lambda: len(listener.rows) >= len(whole))
    await asyncio.sleep(0.3)
    assert sorted(map(json.dumps, listener.rows)) == sorted(map(json.dumps, whole))
    await listener.end()


async def test_a_position_of_another_record_is_not_waited_for(serve: Serve, record: Path) -> None:
    """As after a record was restored from a backup: its numbers are smaller."""
    served = await serve()
    listener = await Listener(served, "999999.999999").begin()
    say(record, "new")
    await until(lambda: listener.reasons == ["new"])
    await listener.end()


async def test_a_position_that_is_none_is_a_problem(serve: Serve) -> None:
    answer = await (await serve()).ask(
        f"{API}/events/stream", headers={"Last-Event-ID": "nonsense"}
    )
    assert answer.status == 400 and "no position" in answer.json["detail"]


async def test_a_reading_that_fails_halfway_repeats_nothing(
    serve: Serve, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, read, calls = await serve(), stream.messages, list[int]()

    def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise StoreError("disk full")
        return read(*args)

    listener = await Listener(served).begin()
    await until(lambda: served.service.stream._seen)
    monkeypatch.setattr(stream, "PAGE_LENGTH", 1)
    monkeypatch.setattr(stream, "messages", failing)
    say(record, "one", "two", "three", "four")
    await until(lambda: "four" in listener.reasons)
    assert listener.reasons == ["one", "two", "three", "four"]
    await listener.end()


async def test_clients_come_again_when_another_record_takes_the_place(
    serve: Serve, record: Path, tmp_path: Path
) -> None:
    """As when an older one is restored from a backup."""
    for file in record.parent.glob(f"{record.name}*"):
        shutil.copy(file, tmp_path / f"older-{file.name}")
    say(record, "lost")
    listener = await Listener(await serve()).begin()
    await until(lambda: listener.served.service.stream._seen)
    (tmp_path / f"older-{record.name}").rename(record)
    task = listener.task
    assert task
    await asyncio.wait([task], timeout=20)
    again = await Listener(listener.served, listener.last_id).begin()
    say(record, "new")
    await until(lambda: again.reasons == ["new"])
    await again.end()


async def test_streams_end_at_once_when_the_service_stops(serve: Serve) -> None:
    served = await serve()
    listener = await Listener(served).begin()
    await served.service.app.shutdown()
    assert listener.task and (await asyncio.wait([listener.task], timeout=5))[0]


async def test_the_head_of_the_stream_is_no_client(serve: Serve) -> None:
    """A body behind it would be taken for the next answer on the connection."""
    served = await serve()
    reader, writer = await asyncio.open_connection(*served.section.listen.split(":"))
    for path in ("/api/v1/events/stream", "/-/healthy"):
        writer.write(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 200 OK")
    assert not served.service.stream._clients
    writer.close()


def test_the_unit_has_files_for_all_clients() -> None:
    unit = (Path(__file__).parents[2] / "packaging/systemd/provisioner-web.service").read_text()
    assert int(unit.partition("LimitNOFILE=")[2].split()[0]) > 2 * stream.MOST_CLIENTS


async def test_silence_is_kept_alive(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEEP_ALIVE_S", 0.05)
    listener = await Listener(await serve()).begin()
    await until(lambda: listener.comments >= 3)
    await listener.end()


async def test_a_client_that_never_reads_is_cut_off_and_others_are_told(
    serve: Serve, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "WRITE_TIMEOUT_S", 0.5)
    served = await serve()
    host, port = served.section.listen.split(":")
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect((host, int(port)))
    deaf.sendall(f"GET {API}/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    reads = await Listener(served).begin()
    await until(lambda: len(served.service.stream._clients) == 2)
    said = 0
    while len(served.service.stream._clients) == 2:
        say(record, *("x" * 900 for _ in range(50)))
        said += 50
        assert said < 20_000, "it does not fill the socket"
        await asyncio.sleep(0.02)
    await until(lambda: len(reads.reasons) == said)
    assert len(served.service.stream._clients) == 1
    await reads.end()
    deaf.close()


async def test_a_record_that_cannot_be_read_for_a_while(serve: Serve, record: Path) -> None:
    served = await serve()
    listener = await Listener(served).begin()
    say(record, "before")
    await until(lambda: listener.reasons == ["before"])
    away = record.with_name("away")
    record.rename(away)  # noqa: ASYNC240
    await asyncio.sleep(0.3)
    away.rename(record)
    say(record, "back")
    await until(lambda: listener.reasons == ["before", "back"])
    await listener.end()


async def test_a_stream_ends_with_the_token_that_opened_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "LEEWAY_S", 0.0)
    issuer = Issuer()
    runner = await issuer.start()
    served = await serve(**issuer.section())
    headers = bearing(issuer.token(exp=time.time() + 1.5))
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{served.url}{API}/events/stream", headers=headers) as found:
            assert found.status == 200
            with pytest.raises(aiohttp.ClientError):
                await asyncio.wait_for(found.read(), 20)
        async with session.get(f"{served.url}{API}/events/stream", headers=headers) as found:
            assert found.status == 401
    await runner.cleanup()
