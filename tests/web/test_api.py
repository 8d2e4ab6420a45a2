"""The API beside the command line: the same answers, the same mistakes; ETags, cursors, changes on record."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import aiohttp
import jsonschema
import pytest
import yaml

from provisioner.answers.schemas import output_schemas
from provisioner.model import DrainMode, RequestKind
from provisioner.store.reader import Reader
from provisioner.web import pages, record as shared_record
from tests.cli.conftest import NOW, Cli
from tests.web.conftest import API, Serve

SCHEMAS = output_schemas()
SAME = [
    ("status", "/status"),
    ("drones", "/drones"),
    ("drones --all --sort -age --limit 2", "/drones?all=true&sort=-age&limit=2"),
    ("drones --site topas --state busy --state idle", "/drones?site=topas&state=busy&state=idle"),
    ("drones show 1", "/drones/1"),
    ("drones show slot1@gpu07.example.org", "/drones/slot1@gpu07.example.org"),
    ("sites", "/sites"),
    ("sites show topas", "/sites/topas"),
    ("demand --waiting", "/demand?waiting=true"),
    ("demand --vo belle2", "/demand?vo=belle2"),
    ("explain class 9", "/classes/9"),
    ("explain job 204.2", "/jobs/204.2"),
    ("plan", "/plan"),
    ("events --since all", "/events?since=all"),
    ("usage --by type", "/usage?by=type"),
    ("usage --by vo", "/usage?by=vo"),
    ("estimates", "/estimates"),
]


@pytest.mark.parametrize(("words", "path"), SAME, ids=[words for words, _ in SAME])
async def test_an_answer_is_that_of_the_command_line(
    on: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch, words: str, path: str
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW + 0.5)
    served = await serve()
    answer = await served.ask(API + path)
    told = on(*words.split(), "-o", "json").out
    assert answer.status == 200, answer.text
    assert answer.text == told
    jsonschema.validate(
        answer.json, SCHEMAS[answer.json["schema"]], cls=jsonschema.Draft202012Validator
    )


@pytest.mark.parametrize("output", ["jsonl", "csv", "yaml", "table", "wide", "name"])
async def test_it_has_the_forms_of_the_command_line(on: Cli, serve: Serve, output: str) -> None:
    served = await serve()
    answer = await served.ask(f"{API}/sites?output={output}&width=100&columns=site,breaker,drones")
    assert answer.text == on("sites", "-o", output, "--columns", "site,breaker,drones").out
    kind = {"jsonl": "application/jsonl", "csv": "text/csv", "yaml": "application/yaml"}.get(
        output, "text/plain"
    )
    assert answer.headers["Content-Type"].partition(";")[0] == kind
    assert output != "yaml" or yaml.safe_load(answer.text)["items"]


@pytest.mark.parametrize(
    ("path", "status", "code", "said"),
    [
        ("/drones/999", 404, 1, "no drone `999` on record"),
        ("/drones/kit-ab12", 404, 1, "kit-ab12 means 3 drones"),
        ("/sites/tpoas", 404, 1, "did you mean `topas`?"),
        ("/drones?site=nowhere", 404, 1, "no site `nowhere`"),
        ("/drones?limits=3", 400, 2, "did you mean `limit`?"),
        ("/drones?limit=x", 400, 2, "--limit"),
        ("/drones?all=maybe", 400, 2, "write true or false"),
        ("/drones?sort=nosuch,-", 400, 2, "no column `nosuch`"),
        ("/drones?columns=nosuch", 400, 2, "no column `nosuch`"),
        ("/drones?store=/etc/passwd", 400, 2, "no parameter `store`"),
        ("/status?output=csv", 400, 2, "is for lists"),
        ("/events?after=7", 400, 2, "is no position"),
        ("/jobs/nonsense", 404, 1, "is not a job id"),
        ("/schemas/nosuch", 404, 1, "no schema `nosuch`"),
    ],
)
async def test_a_mistake_is_a_problem_with_the_words_of_the_command_line(
    serve: Serve, path: str, status: int, code: int, said: str
) -> None:
    answer = await (await serve()).ask(API + path)
    assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (
        status,
        "application/problem+json",
    )
    problem = answer.json
    assert (problem["status"], problem["exit_code"]) == (status, code) and said in problem["detail"]


@pytest.mark.parametrize(("path", "said"), [("/drone/<b>999", "no drone"), ("/<b>999", "/owner")])
async def test_a_page_that_is_not_there_is_a_page_that_says_so(
    serve: Serve, path: str, said: str
) -> None:
    answer = await (await serve()).ask(path)
    assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (404, "text/html")
    assert "Not found" in answer.text and said in answer.text and "<b>999" not in answer.text


@pytest.mark.parametrize(
    "path", ["/drones?state=sleeping", "/drones?sort=nosuch", "/use?since=1y", "/sites?nosuch=1"]
)
async def test_a_page_with_a_wrong_parameter_says_so(serve: Serve, path: str) -> None:
    answer = await (await serve()).ask(path)
    assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (400, "text/html")
    assert "<h1>Bad request</h1>" in answer.text


async def test_a_static_file_is_there_and_no_other(serve: Serve) -> None:
    served = await serve()
    assert (await served.ask("/static/style.css")).headers["Content-Type"] == "text/css"
    for name in ("nosuch", "a" * 3000, "..%2Fserver.py"):
        assert (await served.ask(f"/static/{name}")).status == 404


async def test_without_a_record_it_says_so_and_goes_on_when_there_is_one(
    serve: Serve, record: Path, tmp_path: Path
) -> None:
    later = tmp_path / "later.db"
    served = await serve(later)
    answer = await served.ask(f"{API}/status")
    assert answer.status == 503 and "there is no store" in answer.json["detail"]
    assert (await served.ask("/-/healthy")).status == 200
    for file in record.parent.glob(f"{record.name}*"):
        shutil.copy(file, later.with_name(file.name.replace(record.name, later.name)))
    assert (await served.ask(f"{API}/status")).status == 200


async def test_an_answer_that_is_known_is_not_sent_again(serve: Serve, record: Path) -> None:
    served = await serve()
    first = await served.ask(f"{API}/drones")
    tag = first.headers["ETag"]
    again = await served.ask(f"{API}/drones", headers={"If-None-Match": tag})
    assert (again.status, again.text, again.headers["ETag"]) == (304, "", tag)
    Reader(record).ask(RequestKind.RESET, [], reason="x", by="y", at=1.0)
    changed = await served.ask(f"{API}/drones", headers={"If-None-Match": tag})
    assert changed.status == 200 and changed.headers["ETag"] != tag


async def test_what_is_said_of_a_silent_record_has_another_tag_after_a_while(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher with ETags must see that the views grow old."""
    monkeypatch.setattr(shared_record, "STALE_STEP_S", 0.2)
    served = await serve()
    tag = (await served.ask(f"{API}/status")).headers["ETag"]
    await asyncio.sleep(0.3)
    assert (await served.ask(f"{API}/status", headers={"If-None-Match": tag})).status == 200


async def test_many_who_ask_the_same_cost_one_reading(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve()
    read, calls = Reader.views, []
    monkeypatch.setattr(Reader, "views", lambda self, **how: calls.append(1) or read(self, **how))
    answers = await asyncio.gather(*(served.ask(f"{API}/sites") for _ in range(30)))
    assert {a.status for a in answers} == {200} and len(calls) == 1


async def test_a_query_does_not_make_the_public_page_anew(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve()
    render, calls = pages.render, []
    monkeypatch.setattr(pages, "render", lambda *asked: calls.append(1) or render(*asked))
    answers = await asyncio.gather(*(served.ask(f"/job/204.2?n={n}") for n in range(10)))
    assert {a.status for a in answers} == {200} and len(calls) == 1


async def test_an_answer_is_compressed_for_those_who_take_it(serve: Serve) -> None:
    served = await serve()
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.get(f"{served.url}{API}/status", headers={"Accept-Encoding": "gzip"}) as found,
    ):
        assert found.headers["Content-Encoding"] == "gzip"
        assert json.loads(gzip.decompress(await found.read()))["schema"] == "provisioner.status/1"


@pytest.mark.parametrize(
    ("path", "begin", "key"), [("/drones?all=true", "", "id"), ("/events?since=all", "0.0", "at")]
)
async def test_cursors_lead_through_a_list_without_gap_or_repetition(
    serve: Serve, path: str, begin: str, key: str
) -> None:
    served = await serve()
    whole = (await served.ask(API + path)).json["items"]
    url, pages = f"{API}{path}&limit=2" + (f"&after={begin}" if begin else ""), []
    while url:
        answer = await served.ask(url)
        pages.append(answer.json["items"])
        link = answer.headers.get("Link", "")
        url = link.partition(">")[0].removeprefix("<")
    assert len(pages) == -(-len(whole) // 2) > 1
    assert sorted(json.dumps(row[key]) for page in pages for row in page) == sorted(
        json.dumps(r[key]) for r in whole
    )


async def test_a_cursor_holds_while_new_things_happen(serve: Serve, record: Path) -> None:
    served = await serve()
    first = await served.ask(f"{API}/events?since=all&limit=100&after=0.0")
    assert "Link" not in first.headers and first.json["items"]
    # of a clock that was wrong
    Reader(record).ask(RequestKind.RELOAD, [], reason="new", by="anna", at=2.0)
    rest = (await served.ask(f"{API}/events?since=all&after={len(first.json['items'])}.1")).json[
        "items"
    ]
    assert [row["name"] for row in rest] == ["request.recorded"] and rest[0]["fields"][
        "by"
    ] == "anna"


@pytest.mark.parametrize(
    ("path", "body", "recorded"),
    [
        ("/drones/1/drain", {"mode": "fast"}, (RequestKind.DRAIN, "kit-ab12-1", DrainMode.FAST)),
        ("/drones/8810.0/kill", {}, (RequestKind.KILL, "kit-ab12-1", DrainMode.PEACEFUL)),
        ("/sites/topas/disable", {}, (RequestKind.DISABLE, "topas", DrainMode.PEACEFUL)),
        ("/sites/horeka/reset", {}, (RequestKind.RESET, "horeka", DrainMode.PEACEFUL)),
        ("/reload", {}, (RequestKind.RELOAD, "", DrainMode.PEACEFUL)),
    ],
)
async def test_a_change_is_on_record_with_who_and_why(
    serve: Serve,
    record: Path,
    path: str,
    body: dict[str, str],
    recorded: tuple[RequestKind, str, DrainMode],
) -> None:
    served = await serve()
    answer = await served.change(path, "broken fan", json=body)
    assert answer.status == 202, answer.text
    (request,) = Reader(record).requests()
    assert (request.kind, ",".join(request.drone_ids), request.mode) == recorded
    assert (request.reason, request.id) == ("broken fan", answer.json["request"])
    assert request.by and answer.json["controller_runs"] is False
    event = Reader(record).events()[-1]
    assert event.name == "request.recorded" and event.fields["by"] == request.by
    assert event.fields["reason"] == "broken fan"


@pytest.mark.parametrize(
    ("path", "more", "status", "said"),
    [
        ("/drones/999/kill", {}, 404, "no drone `999`"),
        ("/drones/2/kill", {}, 409, "has ended already"),
        ("/sites/tpoas/disable", {}, 404, "did you mean `topas`?"),
        ("/sites/topas/enable", {}, 409, "is not disabled"),
        ("/sites/topas/reset", {}, 409, "topas is not banned"),
        ("/drones/1/drain", {"json": {"mode": "nosuch"}}, 400, "mode"),
        ("/drones/1/drain", {"json": {"by": "root"}}, 400, "by"),
        ("/drones/1/drain", {"json": {"reason": " "}}, 400, "reason"),
        ("/drones/1/drain", {"json": {"reason": "x" * 1001}}, 400, "reason"),
    ],
)
async def test_a_change_that_cannot_be_is_refused(
    serve: Serve, record: Path, path: str, more: dict[str, dict[str, str]], status: int, said: str
) -> None:
    answer = await (await serve()).change(path, **more)
    assert answer.status == status and said in answer.json["detail"]
    assert not Reader(record).requests()


async def test_a_form_of_a_web_page_changes_nothing(serve: Serve, record: Path) -> None:
    """A browser sends forms to any host, with the person's log-in; JSON only after asking."""
    served = await serve()
    url, body = f"{API}/drones/1/kill", json.dumps({"reason": "x"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {"Content-Type": kind}
        assert (
            await served.ask(url, method="POST", unix=served.path, data=body, headers=headers)
        ).status == 415
    other = await served.change("/drones/1/kill", headers={"Origin": "https://evil.example"})
    assert other.status == 403 and "evil.example" in other.json["detail"]
    assert not Reader(record).requests()


async def test_a_body_in_pieces_is_read_whole_and_one_too_large_is_refused(
    serve: Serve, record: Path
) -> None:
    async def pieces(text: str) -> AsyncIterator[bytes]:
        for begin in range(0, len(text), 3000):
            yield text[begin : begin + 3000].encode()
            await asyncio.sleep(0.05)

    served, headers = await serve(), {"Content-Type": "application/json"}
    url = f"{API}/drones/1/kill"
    for spaces, status in ((7000, 202), (20_000, 413)):
        body = pieces(f'{{"reason":{" " * spaces}"x"}}')
        assert (
            await served.ask(url, method="POST", unix=served.path, data=body, headers=headers)
        ).status == status
    assert len(Reader(record).requests()) == 1


async def test_schemas_are_those_of_the_command_line(serve: Serve) -> None:
    served = await serve()
    assert (await served.ask(f"{API}/schemas")).json == list(SCHEMAS)
    for plain in ("provisioner.drones/1", quote("provisioner.drones/1", safe="")):
        assert (await served.ask(f"{API}/schemas/{plain}")).json == SCHEMAS["provisioner.drones/1"]


async def test_every_answer_has_strict_headers(serve: Serve) -> None:
    served = await serve()
    for path in (
        "/-/healthy",
        f"{API}/status",
        "/nosuch",
        f"{API}/drones/999",
        "/static/style.css",
    ):
        headers = (await served.ask(path)).headers
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"], path
        assert headers["X-Content-Type-Options"] == "nosniff"


async def test_a_mistake_of_ours_tells_the_log_and_not_the_caller(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Reader) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Reader, "views", fails)
    answer = await (await serve()).ask(f"{API}/sites")
    assert answer.status == 500 and "secret" not in answer.text
