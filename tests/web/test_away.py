"""A record that cannot be read for a while: pages and API show the newest data, with its age and the error."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provisioner.web import record as web_record
from provisioner.web.api import STALE_HEADER
from provisioner.web.record import PAGE_BEGIN
from tests.labs.postgresql import QUICK, postgres_or_skip
from tests.store.story import drone, record as record_plan, starts, store_at
from tests.web.conftest import API, Serve, Served

PATHS = ("/", f"{API}/drones", f"{API}/status")


async def seen(served: Served) -> dict[str, str]:
    answers = {path: await served.ask(path) for path in PATHS}
    assert {each.status for each in answers.values()} == {200}
    assert not any(STALE_HEADER in each.headers for each in answers.values())
    assert PAGE_BEGIN in answers["/"].text
    return {path: each.text for path, each in answers.items()}


async def test_while_the_record_is_away_its_newest_data_is_shown_with_the_age_and_the_error(
    serve: Serve, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve()
    before = await seen(served)
    os.rename(record, aside := record.with_name("aside"))
    really = time.time()
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: really + 100.0)
        for path in PATHS:
            answer = await served.ask(path, headers={"If-None-Match": "*"})
            assert answer.status == 200 and 95 <= int(answer.headers["Age"]) <= 105
            assert "there is no store" in answer.headers[STALE_HEADER]
            assert "ETag" not in answer.headers
            if path == "/":
                assert "This is 1m40s old: there is no store" in answer.text
                assert answer.text.count("The record was last read") == 1
            else:
                assert answer.text == before[path]
        page, api = await served.ask("/sites"), await served.ask(f"{API}/sites")
        assert (page.status, api.status) == (503, 503)
        assert (
            "<h1>The record cannot be read</h1>" in page.text and "last read 1m40s ago" in page.text
        )
        assert "The record was last read" in api.json["detail"]
    os.rename(aside, record)
    assert (await served.ask("/sites")).status == 200
    assert {*await seen(served)} == {*PATHS}


async def test_a_server_that_says_nothing_holds_up_few_pages_and_comes_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_record, "READER_SILENCE_S", 1.0)
    with postgres_or_skip(*QUICK) as server:
        place = server.new_place()
        async with store_at(place) as store:
            await record_plan(store, starts(1, drone(1)))
        served = await serve(place)
        before = await seen(served)
        path = f"{API}/drones"
        with server.paused():
            first = await served.ask(path)
            assert "no connection to the database" in first.headers[STALE_HEADER]
            begun = time.monotonic()
            for _ in range(20):
                assert (await served.ask(path)).text == first.text == before[path]
            assert time.monotonic() - begun < 15.0, "each one would wait for two seconds"
        deadline = time.monotonic() + 20.0
        while STALE_HEADER in (await served.ask(path)).headers:
            assert time.monotonic() < deadline
        await seen(served)


async def test_a_verb_that_asks_the_service_says_how_old_its_answer_is(
    serve: Serve, record: Path
) -> None:
    served = await serve()

    async def drones() -> tuple[int | None, bytes, bytes]:
        words = ("-m", "provisioner.cli", "drones", "--url", served.url, "-o", "json")
        verb = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        return verb.returncode, *await verb.communicate()

    _, before, quiet = await drones()
    os.rename(record, record.with_name("aside"))
    code, after, notes = await drones()
    assert before and after == before and not code
    assert b"old: there is no store" in notes and b"old" not in quiet
