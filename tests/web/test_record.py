"""Reading for many: the bulk is decoded once, a busy service gives older answers, and short reads wait for none."""

from __future__ import annotations

import asyncio
import gzip
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.model import RequestKind
from provisioner.store.reader import Reader
from provisioner.web import record as web_record
from provisioner.web.record import Answered, SharedReader, SharedRecord, TooManyReadsError
from tests.web.conftest import API, Serve, until


class Gate:
    """Work that takes until it is let go."""

    def __init__(self, shared: SharedRecord) -> None:
        self._shared, self._open = shared, threading.Event()

    def occupy(self) -> list[asyncio.Task[bool]]:
        """Have all threads for long reads work."""
        wait = self._shared.run
        return [
            asyncio.create_task(wait(self._open.wait, 20.0)) for _ in range(web_record.READ_THREADS)
        ]

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def shared(record: Path) -> Iterator[SharedRecord]:
    made = SharedRecord(SharedReader(record))
    yield made
    made.close()


def ask(record: Path) -> None:
    Reader(record).ask(RequestKind.RESET, [], reason="x", by="y", at=1.0)


def test_the_bulk_is_decoded_once_for_each_state_of_the_record(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, plain = SharedReader(record), Reader(record)
    assert reader.views() == plain.views() and reader.views() is reader.views()
    assert reader.slots() == plain.slots() != () and reader.slots() is reader.slots()
    assert reader.snapshot() == plain.snapshot() and reader.snapshot() is reader.snapshot()
    before = reader.views()
    ask(record)
    assert reader.views() is not before and reader.snapshot().requests == plain.snapshot().requests  # type: ignore[union-attr]


def test_a_state_is_gone_before_the_next_is_read(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at once would take twice the memory."""

    class Bulk:
        """Anything that takes memory."""

    made: list[weakref.ref[Bulk]] = []
    left: list[list[Bulk | None]] = []

    def read(_: Reader) -> Bulk:
        left.append([each() for each in made])
        bulk = Bulk()
        made.append(weakref.ref(bulk))
        return bulk

    monkeypatch.setattr(Reader, "snapshot", read)
    reader = SharedReader(record)
    reader.snapshot()
    ask(record)
    reader.snapshot()
    assert left == [[], [None]]


def test_threads_that_ask_at_once_wait_for_one_reading(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, calls = Reader.views, []
    monkeypatch.setattr(Reader, "views", lambda self, **how: calls.append(1) or read(self, **how))
    reader = SharedReader(record)
    threads = [threading.Thread(target=reader.views) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


async def test_a_busy_service_gives_an_answer_of_an_older_version(shared: SharedRecord) -> None:
    texts = iter([b"first", b"second", b"third"])

    async def answer(version: str) -> Answered:
        return await shared.answer("key", version, lambda: Answered(next(texts), "text/plain"))

    assert (await answer("1"))[0] == b"first"
    assert (await answer("2"))[0] == b"second", "it is not busy"
    gate = Gate(shared)
    tasks = gate.occupy()
    await asyncio.sleep(0)
    found = await answer("3")
    assert (found.body, found.version) == (b"second", "2"), (
        "its version is that of the older answer"
    )
    gate.open()
    await asyncio.gather(*tasks)
    assert (await answer("3")).version == "3"


async def test_a_busy_service_gives_no_answer_that_is_too_old(
    shared: SharedRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shared.answer("key", "1", lambda: Answered(b"first", "text/plain"))
    monkeypatch.setattr(web_record, "BUSY_KEPT_S", -1.0)
    gate = Gate(shared)
    tasks = gate.occupy()
    await asyncio.sleep(0)
    second = asyncio.create_task(
        shared.answer("key", "2", lambda: Answered(b"second", "text/plain"))
    )
    third = asyncio.create_task(shared.answer("key", "3", lambda: Answered(b"third", "text/plain")))
    await asyncio.sleep(0.05)
    gate.open()
    assert (await second).body == (await third).body == b"second", (
        "one that is being made is waited for"
    )
    await asyncio.gather(*tasks)


async def test_a_short_read_does_not_wait_for_long_ones(shared: SharedRecord) -> None:
    gate = Gate(shared)
    tasks = gate.occupy()
    assert await asyncio.wait_for(shared.version(), 5.0)
    assert not any(task.done() for task in tasks)
    gate.open()
    await asyncio.gather(*tasks)


async def test_too_many_long_reads_are_refused_and_short_ones_are_not(
    shared: SharedRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_record, "MOST_WAITING_READS", web_record.READ_THREADS)
    gate = Gate(shared)
    tasks = gate.occupy()
    await asyncio.sleep(0)
    with pytest.raises(TooManyReadsError):
        await shared.run(list)
    assert await shared.version()
    gate.open()
    await asyncio.gather(*tasks)


async def test_long_answers_are_kept_compressed_and_clients_get_what_they_take(
    serve: Serve,
) -> None:
    served = await serve()
    plain = await served.ask(f"{API}/status", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers and plain.headers["Vary"] == "Accept-Encoding"
    assert plain.json["schema"] == "provisioner.status/1"
    kept = [future.result() for _, _, future in served.service.record._answers.values()]
    assert any(each.zipped and gzip.decompress(each.body).decode() == plain.text for each in kept)
    page = await served.ask("/", headers={"Accept-Encoding": "gzip"})
    assert (
        page.headers["Content-Encoding"] == "gzip"
        and "charset=utf-8" in page.headers["Content-Type"]
    )


async def test_many_listeners_may_come_at_once(serve: Serve) -> None:
    """As after a restart: a browser whose stream is refused does not try again."""
    served = await serve()
    host, port = served.section.listen.split(":")
    pairs = await asyncio.gather(*(asyncio.open_connection(host, int(port)) for _ in range(300)))
    for _, writer in pairs:
        writer.write(f"GET {API}/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    lines = await asyncio.wait_for(
        asyncio.gather(*(reader.readline() for reader, _ in pairs)), 60.0
    )
    assert {line.split()[1] for line in lines} == {b"200"}
    for _, writer in pairs:
        writer.close()
    await until(lambda: not served.service.stream._clients)
