"""Readers that ask for much keep neither monitoring nor other callers waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from provisioner.monitoring.metrics import exposition
from provisioner.web import pages, record as web_record, server
from tests.web.conftest import API, Serve, until

PATIENCE_S = 20.0


class Held:
    """Pages that take until they are let go, and those that began."""

    def __init__(self) -> None:
        self.event, self.begun = threading.Event(), list[str]()

    def hold(self, path: str) -> None:
        self.begun.append(path)
        self.event.wait(60.0)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Have the page of sites wait."""
    made, render = Held(), pages.render

    def slow(path: str, reader: Any, query: Any) -> str:
        if path == "/sites":
            made.hold(path)
        return render(path, reader, query)

    monkeypatch.setattr(pages, "render", slow)
    yield made
    made.event.set()


async def test_monitoring_waits_for_no_reader(serve: Serve, held: Held) -> None:
    served = await serve()
    many = [
        # no answer is shared
        asyncio.create_task(served.ask(f"/sites?limit={n}", unix=served.path if n % 2 else None))
        for n in range(1, 21)
    ]
    await until(lambda: len(held.begun) == web_record.READ_THREADS)
    for path in ("/-/ready", "/metrics", f"{API}/status"):
        answer = await asyncio.wait_for(served.ask(path), PATIENCE_S)
        # no controller holds this record
        assert answer.status == (503 if path == "/-/ready" else 200), path
    assert not any(task.done() for task in many)
    held.event.set()
    assert {answer.status for answer in await asyncio.gather(*many)} == {200}


async def test_a_caller_leaves_a_thread_to_the_others(serve: Serve, held: Held) -> None:
    served = await serve()
    many = [asyncio.create_task(served.ask(f"/sites?limit={n}")) for n in range(1, 11)]
    await until(lambda: held.begun)
    assert (await asyncio.wait_for(served.ask("/plan", unix=served.path), PATIENCE_S)).status == 200
    held.event.set()
    await asyncio.gather(*many)


async def test_a_caller_with_too_many_reads_is_refused_and_others_are_not(
    serve: Serve, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_record, "MOST_WAITING_OF_CALLER", 3, raising=False)
    served = await serve()
    many = [asyncio.create_task(served.ask(f"/sites?limit={n}")) for n in range(1, 4)]
    await until(lambda: held.begun)
    await asyncio.sleep(0.2)
    refused = await asyncio.wait_for(served.ask("/drones?limit=7"), PATIENCE_S)
    assert refused.status == 503 and refused.headers["Retry-After"] == "5"
    assert (await asyncio.wait_for(served.ask("/plan", unix=served.path), PATIENCE_S)).status == 200
    held.event.set()
    await asyncio.gather(*many)
    assert (await served.ask("/drones?limit=7")).status == 200


async def test_metrics_are_computed_once_for_all_who_ask(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Held()

    def slow(*args: Any) -> bytes:
        made.hold("/metrics")
        return exposition(*args)

    monkeypatch.setattr(server, "exposition", slow)
    served = await serve()
    many = [asyncio.create_task(served.ask("/metrics")) for _ in range(20)]
    await until(lambda: made.begun)
    await asyncio.sleep(0.3)
    made.event.set()
    texts = {answer.text for answer in await asyncio.gather(*many)}
    assert len(made.begun) == 1 and len(texts) == 1 and "provisioner_record_up 1.0" in texts.pop()


async def test_that_a_job_is_not_known_is_kept_as_an_answer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, render = list[str](), pages.render
    monkeypatch.setattr(
        pages, "render", lambda path, *rest: asked.append(path) or render(path, *rest)
    )
    served = await serve()
    for _ in range(5):
        assert (await served.ask("/job/9999.0")).status == 404
    assert asked == ["/job/9999.0"]
