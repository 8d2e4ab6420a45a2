"""The API below ``/api/v1``: the verbs of the command line as resources, and changes as requests on record."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import structlog
import typer
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.__main__ import app as command_line
from provisioner.cli.options import Exit, Format, VerbError
from provisioner.cli.remote import API, LOCAL_OPTIONS, RESOURCES
from provisioner.cli.sites import site_request, troubled_scopes
from provisioner.durations import parse_duration
from provisioner.model import DrainMode, DroneId, RequestKind
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
VITAL_PATHS = (f"{API}/status",)
"""Resources that monitoring asks for: without a parameter their answers wait for no others."""
MIN_WIDTH, MAX_WIDTH = 20, 1000


class ApiModel(BaseModel):
    """Body of a request, or of an answer that no verb gives."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Resource:
    """Resource that answers as a verb of the command line does."""

    def __init__(self, path: str, verb: str) -> None:
        self.path, self.verb = path, verb
        command, context = (
            typer.main.get_command(command_line),
            typer.Context(typer.main.get_command(command_line)),
        )
        for word in verb.split():
            command = command.get_command(context, word)  # type: ignore[attr-defined]
        self.command: Any = command
        shown: list[Any] = [
            p
            for p in command.params
            if p.param_type_name == "option" and p.name not in LOCAL_OPTIONS
        ]
        self.options = {p.opts[0].removeprefix("--"): p for p in shown}

    def arguments(
        self, subject: str | None, query: Mapping[str, Sequence[str]]
    ) -> tuple[list[str], out.Page]:
        """Return the words of the command line that a query means, and the page. Raises :class:`VerbError`."""
        words, options = ["--output=json"], dict(query)
        width, color = options.pop("width", None), options.pop("color", ["false"])
        page = out.Page(
            opt.parsed(_width, "width", width[-1]) if width else None,
            opt.parsed(_flag, "color", color[-1]),
        )
        for name, values in options.items():
            if name not in self.options:
                raise opt.unknown(
                    "parameter", name, [*self.options, "width", "color"], code=Exit.USAGE
                )
            if self.options[name].is_flag:
                words += [f"--{name}"] * opt.parsed(_flag, name, values[-1])
            else:
                words += [f"--{name}={value}" for value in values]
        return words + ([] if subject is None else ["--", subject]), page

    def ask(self, reader: Reader, words: Sequence[str]) -> tuple[out.Answer, opt.Show]:
        """Return what the verb answers, and the form that is asked for. Raises :class:`VerbError`, ``StoreError``."""
        try:
            with self.command.make_context(self.verb, list(words), obj=reader) as context:
                answered: tuple[out.Answer, opt.Show] = self.command.invoke(context)
                return answered
        except Exception as error:
            if hasattr(error, "format_message"):  # usage errors have no fixed class in Typer
                raise VerbError(error.format_message(), code=Exit.USAGE) from None
            raise

    def answer(self, reader: Reader, words: Sequence[str], page: out.Page) -> Answered:
        """Return what the verb answers, in the form that is asked for. Raises as :meth:`ask`."""
        with out.one_moment(reader.now):
            answer, show = self.ask(reader, words)
            written = io.StringIO()
            wide = show.output is Format.WIDE
            out.write(answer, show, out.Page(None, page.color) if wide else page, written)
        more = answer.more if isinstance(answer, out.Listing) else ""
        return Answered(
            written.getvalue().encode(),
            CONTENT_TYPES.get(show.output, TEXT_TYPE),
            answer.scope,
            more,
        )


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("write true or false")
    return text == "true"


def _width(text: str) -> int:
    if not (
        text.isascii()
        and text.isdecimal()
        and len(text) < 5
        and MIN_WIDTH <= int(text) <= MAX_WIDTH
    ):
        raise ValueError(f"write a number from {MIN_WIDTH} to {MAX_WIDTH}")
    return int(text)


async def answer_resource(
    resource: Resource, record: SharedRecord, request: web.Request
) -> web.Response:
    """Answer a GET request of a resource."""
    query = {name: request.query.getall(name) for name in request.query}
    words, page = resource.arguments(request.match_info.get("id"), query)
    key = f"{resource.path} {words} {page}"
    return await answer_shared(
        record, request, key, partial(resource.answer, record.reader, words, page)
    )


async def answer_shared(
    record: SharedRecord, request: web.Request, key: str, make: Callable[[], Answered]
) -> web.Response:
    """Answer with what ``make`` returns, once for all requests with the same key; 304 if the caller has it."""
    vital = request.rel_url.path_qs in VITAL_PATHS
    version, headers = await record.version(vital=vital), {"Cache-Control": "no-cache"}
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
    headers, body = {"Vary": "Accept-Encoding", **headers}, answered.body
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
    query, now = request.query, await record.glance(record.reader.now)
    metric = query.get("metric", "")
    since_s = opt.parsed(parse_duration, "since", query.get("since", "1d"))
    step_s = max(1.0, opt.parsed(parse_duration, "step", query.get("step", "5min")))
    if since_s / step_s > MOST_POINTS:
        raise VerbError(f"more than {MOST_POINTS} points: write a longer `step`", code=Exit.USAGE)
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
    drone_id = opt.find_drone(reader, any_id)
    drone = reader.drone(drone_id)
    if drone is None or drone.state.ended:
        raise VerbError(f"drone {drone_id} has ended already", code=Exit.UNMET)
    mode = f" ({body.mode.value})" if isinstance(body, DrainBody) else ""
    return [drone_id], f"{kind.value}{mode} {drone_id}"


def _reset(kind: RequestKind, reader: Reader, site: str, body: ChangeBody) -> RequestWords:
    scope, troubled = troubled_scopes(
        reader, site, body.type if isinstance(body, ResetBody) else None
    )
    if not troubled:
        raise VerbError(f"{scope} is not banned", code=Exit.UNMET)
    return [DroneId(scope)], f"use {', '.join(troubled)} again"


def _site(kind: RequestKind, reader: Reader, site: str, body: ChangeBody) -> RequestWords:
    return [DroneId(site)], site_request(reader, kind, site)


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
        "/drones/{id}/drain", RequestKind.DRAIN, "Ask a drone to leave the pool.", _leave, DrainBody
    ),
    Change(
        "/drones/{id}/kill", RequestKind.KILL, "End a drone without waiting for its jobs.", _leave
    ),
    Change("/sites/{id}/disable", RequestKind.DISABLE, "Start no drone at a site.", _site),
    Change("/sites/{id}/enable", RequestKind.ENABLE, "Start drones at a site again.", _site),
    Change(
        "/sites/{id}/adopt-orphans",
        RequestKind.ADOPT_ORPHANS,
        "Put the orphans of a site on record.",
        _site,
    ),
    Change(
        "/sites/{id}/stop-orphans", RequestKind.STOP_ORPHANS, "Stop the orphans of a site.", _site
    ),
    Change(
        "/sites/{id}/reset",
        RequestKind.RESET,
        "Use a banned site or drone type again, now.",
        _reset,
        ResetBody,
    ),
    Change(
        "/reload", RequestKind.RELOAD, "Have the controller read its configuration again.", _reload
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


def resources() -> list[Resource]:
    return [Resource(f"{API}{path}", verb) for path, verb in RESOURCES.items()]
