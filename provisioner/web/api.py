"""The API below ``/api/v1``: the verbs of the command line as resources, and changes as requests on record."""

from __future__ import annotations

import asyncio
import gzip
import io
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, NamedTuple
from urllib.parse import quote

import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provisioner import formatting
from provisioner.answers.columns import Listing, one_moment
from provisioner.answers.errors import UnmetError, UsageError, VerbError, parsed
from provisioner.answers.forms import Page, write
from provisioner.answers.lookup import find_drone
from provisioner.answers.query import (
    API,
    Format,
    Option,
    Options,
    Query,
    RecordQuestion,
    parameters,
    read_query,
)
from provisioner.answers.sites import site_request, troubled_scopes
from provisioner.answers.status import resignation
from provisioner.durations import parse_duration
from provisioner.model import DrainMode, DroneId, RequestKind
from provisioner.store import StoreError
from provisioner.store.reader import Reader
from provisioner.store.series import Series
from provisioner.web.connections import REQUEST_TIMEOUT_S
from provisioner.web.record import Answered, SharedRecord

log = structlog.get_logger()

CONTENT_TYPES = {
    Format.JSON: "application/json",
    Format.JSONL: "application/jsonl",
    Format.YAML: "application/yaml",
    Format.CSV: "text/csv",
}
TEXT_TYPE = "text/plain"
"""Content type of all other forms."""
STALE_HEADER = "Provisioner-Stale"
"""Header that says how old an answer is, and why, while the record cannot be read."""
VITAL_PATHS = (f"{API}/status",)
"""Resources that monitoring asks for: without a parameter their answers wait for no others."""


class ApiModel(BaseModel):
    """Body of a request, or of an answer that no verb gives."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Width(Options):
    """Parameters of the API alone: those of a terminal."""

    width: Annotated[int | None, Option("", least=20, most=1000)] = None
    color: Annotated[bool, Option("")] = False


def read_request(
    question: RecordQuestion, subject: str | None, given: Mapping[str, Sequence[str]]
) -> tuple[Query, Page]:
    """Return the query and the page of a request. Raises :class:`VerbError`."""
    of_page = [each.name for each in parameters(Width)]
    page = read_query(Width, {name: given[name] for name in of_page if name in given})
    texts = {"output": ["json"], **given}
    texts = {name: texts[name] for name in texts if name not in of_page}
    if subject is not None:
        texts["id"] = [subject]
    query = read_query(question.query, texts, *of_page)
    width = None if query.output is Format.WIDE else page.width
    return query, Page(width, page.color)


def answer_query(question: RecordQuestion, reader: Reader, query: Query, page: Page) -> Answered:
    """Return the answer to a question in the form that is asked for.

    Raises :class:`VerbError`, ``StoreError``.
    """
    with one_moment(reader.now):
        answer = question(reader, query)
        body = io.BytesIO()
        written = io.TextIOWrapper(body, "utf-8", write_through=True)
        write(answer, query, page, written)
    return Answered(
        body.getvalue(),
        CONTENT_TYPES.get(query.output, TEXT_TYPE),
        answer.scope,
        answer.more if isinstance(answer, Listing) else "",
    )


async def answer_question(
    question: RecordQuestion, record: SharedRecord, request: web.Request
) -> web.Response:
    """Answer a GET request of a resource."""
    given = {name: request.query.getall(name) for name in request.query}
    query, page = read_request(question, request.match_info.get("id"), given)
    key = f"{question.path} {query} {page}"
    make = partial(answer_query, question, record.reader, query, page)
    return await answer_shared(record, request, key, make)


async def answer_shared(
    record: SharedRecord, request: web.Request, key: str, make: Callable[[], Answered]
) -> web.Response:
    """Answer with what ``make`` returns, once for all requests with the same key; 304 if the caller has it.

    While the record cannot be read, answer as before, with the age and the error.
    """
    try:
        return await _answer_now(record, request, key, make)
    except StoreError as error:
        answered = record.newest.get(key)
        if answered is None:
            raise
        age_s = max(0.0, time.time() - answered.made_at)
        notice = f"This is {formatting.age(age_s)} old: {error}"
        headers = {"Age": f"{age_s:.0f}", STALE_HEADER: quote(notice, safe=" ,;:/()")}
        return response_of(answered.with_notice(notice), request, headers)


async def _answer_now(
    record: SharedRecord, request: web.Request, key: str, make: Callable[[], Answered]
) -> web.Response:
    vital = request.rel_url.path_qs in VITAL_PATHS
    version = await record.version(vital=vital)
    headers = {"Cache-Control": "no-cache"}
    if any(tag.value in (version, "*") for tag in request.if_none_match or ()):
        return web.Response(status=304, headers={"ETag": f'W/"{version}"', **headers})
    answered = await record.answer(key, version, make, vital=vital)
    headers["ETag"] = f'W/"{answered.version}"'
    if answered.scope:
        headers["Provisioner-Scope"] = quote(answered.scope, safe=" ,;:/()")
    if answered.more:
        following = request.rel_url.update_query({"after": answered.more})
        headers["Link"] = f'<{following}>; rel="next"'
    return response_of(answered, request, headers)


def response_of(
    answered: Answered, request: web.Request, headers: Mapping[str, str]
) -> web.Response:
    """Return the response with an answer, compressed if it is long and the client takes that."""
    headers = {"Vary": "Accept-Encoding", **headers}
    body = answered.body
    if answered.zipped and "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
    elif answered.zipped:
        body = gzip.decompress(body)
    is_text = answered.content_type.startswith("text/") and "charset=" not in answered.content_type
    headers["Content-Type"] = (
        f"{answered.content_type}; charset=utf-8" if is_text else answered.content_type
    )
    return web.Response(body=body, headers=headers)


class ProblemDetails(ApiModel):
    """Answer to a request that fails (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    exit_code: int | None = None
    """Exit code of the command line for the same mistake."""


class SeriesAnswer(ApiModel):
    """Time series of a metric."""

    metric: str
    series: list[Series]


async def answer_series(record: SharedRecord, request: web.Request) -> web.Response:
    """Answer with the time series of a metric: ``metric``, ``since`` (an age) and ``step`` (a duration)."""
    query = request.query
    now = await record.glance(record.reader.now)
    metric = query.get("metric", "")
    since_s = parsed(parse_duration, "since", query.get("since", "1d"))
    step_s = max(1.0, parsed(parse_duration, "step", query.get("step", "5min")))
    if since_s / step_s > MOST_POINTS:
        raise UsageError(f"more than {MOST_POINTS} points: write a longer `step`")
    found = await record.run(record.reader.series, metric, now - since_s, now, step_s)
    if not found:
        raise VerbError(f"no series of metric `{formatting.sanitize(metric, 80)}` on record")
    body = SeriesAnswer(metric=metric, series=found).model_dump_json().encode()
    return response_of(Answered(body, CONTENT_TYPES[Format.JSON]).compressed(), request, {})


class ChangeBody(ApiModel):
    """Body of a request for a change."""

    reason: Annotated[str, Field(min_length=1, max_length=1000, pattern=r"\S")]
    """Why; it is on record with the change."""


class DrainBody(ChangeBody):
    """Body of a request to drain a drone."""

    mode: DrainMode = DrainMode.PEACEFUL


class ResetBody(ChangeBody):
    """Body of a request to lift bans."""

    type: Annotated[str, Field(max_length=200)] | None = None
    """Only this drone type of the site."""


class RecordedRequest(ApiModel):
    """Answer to a request for a change."""

    request: int
    """Its number on record."""
    said: str
    """The same in words."""
    controller_runs: bool
    """Is there a controller to carry it out?"""


RequestWords = tuple[list[DroneId], str]
"""Ids of a request as it is put on record, and the request in words."""


def _leave(kind: RequestKind, reader: Reader, any_id: str, body: ChangeBody) -> RequestWords:
    drone_id = find_drone(reader, any_id)
    drone = reader.drone(drone_id)
    if drone is None or drone.state.ended:
        raise UnmetError(f"drone {drone_id} has ended already")
    mode = f" ({body.mode.value})" if isinstance(body, DrainBody) else ""
    return [drone_id], f"{kind.value}{mode} {drone_id}"


def _reset(kind: RequestKind, reader: Reader, site: str, body: ChangeBody) -> RequestWords:
    scope, troubled = troubled_scopes(
        reader, site, body.type if isinstance(body, ResetBody) else None
    )
    if not troubled:
        raise UnmetError(f"{scope} is not banned")
    return [DroneId(str(scope))], f"use {', '.join(map(str, troubled))} again"


def _site(kind: RequestKind, reader: Reader, site: str, body: ChangeBody) -> RequestWords:
    return [DroneId(site)], site_request(reader, kind, site)


def _resign(kind: RequestKind, reader: Reader, subject: str, body: ChangeBody) -> RequestWords:
    return [], resignation(reader)


def _reload(kind: RequestKind, reader: Reader, subject: str, body: ChangeBody) -> RequestWords:
    return [], "read the configuration again"


class Change(NamedTuple):
    """Resource that takes requests for changes."""

    path: str
    kind: RequestKind
    doc: str
    ask: Callable[[RequestKind, Reader, str, ChangeBody], RequestWords]
    body: type[ChangeBody] = ChangeBody


CHANGE_RESOURCES = (
    Change(
        "/drones/{id}/drain",
        RequestKind.DRAIN,
        "Drain a drone: it accepts no new jobs and ends.",
        _leave,
        DrainBody,
    ),
    Change(
        "/drones/{id}/kill", RequestKind.KILL, "Stop a drone without waiting for its jobs.", _leave
    ),
    Change("/sites/{id}/disable", RequestKind.DISABLE, "Start no drone at a site.", _site),
    Change("/sites/{id}/enable", RequestKind.ENABLE, "Start drones at a site again.", _site),
    Change(
        "/sites/{id}/adopt-orphans",
        RequestKind.ADOPT_ORPHANS,
        "Record the orphans of a site as drones.",
        _site,
    ),
    Change(
        "/sites/{id}/stop-orphans", RequestKind.STOP_ORPHANS, "Stop the orphans of a site.", _site
    ),
    Change(
        "/sites/{id}/reset",
        RequestKind.RESET,
        "End the ban of a site or drone type.",
        _reset,
        ResetBody,
    ),
    Change(
        "/reload", RequestKind.RELOAD, "Make the controller read its configuration again.", _reload
    ),
    Change(
        "/leader/resign", RequestKind.RESIGN, "Have the leader hand over to a standby.", _resign
    ),
)
LARGEST_BODY = 16384
MOST_POINTS = 20_000
"""Longest series that is given."""


async def request_change(
    change: Change, record: SharedRecord, request: web.Request, by: str
) -> web.Response:
    """Put a request for a change on record. The controller carries it out at its next tick."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send a body of application/json")
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            body = change.body.model_validate_json(await request.read())
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            text=f"the body did not come within {REQUEST_TIMEOUT_S:g} s"
        ) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        raise web.HTTPBadRequest(
            text=formatting.sanitize(f"{place}: {first['msg']}", 300)
        ) from None
    told = await record.glance(
        _ask, record.reader, change, request.match_info.get("id", ""), body, by
    )
    log.info(
        "change.requested", kind=change.kind.value, by=by, reason=body.reason, request=told.request
    )
    return web.json_response(told.model_dump(), status=202)


def _ask(
    reader: Reader, change: Change, subject: str, body: ChangeBody, by: str
) -> RecordedRequest:
    ids, said = change.ask(change.kind, reader, subject, body)
    mode = body.mode if isinstance(body, DrainBody) else DrainMode.PEACEFUL
    number = reader.ask(change.kind, ids, reason=body.reason, by=by, at=reader.now(), mode=mode)
    return RecordedRequest(request=number, said=said, controller_runs=reader.holder() is not None)
