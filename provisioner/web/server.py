"""The web service: routes with the role that each needs, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from provisioner.answers import QUESTIONS, load_question
from provisioner.answers.columns import one_moment
from provisioner.answers.errors import Exit, VerbError, unknown
from provisioner.answers.query import API
from provisioner.answers.schemas import output_schemas
from provisioner.answers.status import trouble_kinds
from provisioner.config.models import Role, WebSection
from provisioner.monitoring.metrics import content_type, exposition, health
from provisioner.store import StoreError
from provisioner.store.reader import Reader
from provisioner.web import api, openapi, pages
from provisioner.web.connections import Connections
from provisioner.web.identity import Authenticator, Caller, bearer_of
from provisioner.web.record import CALLER_KEY, Answered, SharedRecord, TooManyReadsError
from provisioner.web.stream import EventStream
from provisioner.web.tokens import TokenVerifier

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CALLER: ContextVar[Caller] = ContextVar("caller")
"""Caller of the request that is answered."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STATUS_OF_EXIT = {Exit.USAGE: HTTPStatus.BAD_REQUEST, Exit.UNMET: HTTPStatus.CONFLICT}
CONNECTIONS = web.AppKey("connections", Connections)
READY = "ready\n"
PUBLIC_PAGE = "job"
"""Tells users why their job waits; it needs no identity."""


class WebService:
    """The application, with what its handlers share."""

    def __init__(self, reader: Reader, section: WebSection) -> None:
        self.section = section
        self.record = SharedRecord(reader)
        self.stream = EventStream(self.record)
        self.tokens = TokenVerifier(section.tokens)
        self.callers = Authenticator(section, self.tokens)
        self.app = web.Application(middlewares=[self._problems], client_max_size=api.LARGEST_BODY)
        self.connections = self.app[CONNECTIONS] = Connections(self.callers.proxy_uids)
        self.app.on_response_prepare.append(_secure)
        self.app.on_shutdown.append(self.stream.cut_off)
        self.app.cleanup_ctx.append(self._running)
        self._add_routes()

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        async with self.tokens:
            tasks = [asyncio.create_task(each.run()) for each in (self.stream, self.connections)]
            yield
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.record.close()

    def _add_routes(self) -> None:
        static = Path(str(files("provisioner.web"))) / "static"
        self._get("/-/healthy", _healthy, None)
        self._get("/-/ready", self._ready)
        self._get("/metrics", self._metrics)
        self._get(f"{API}/series", partial(api.answer_series, self.record))
        self._get(f"{API}/openapi.json", partial(_document, openapi.document()))
        self._get(f"{API}/schemas", partial(_document, list(output_schemas())))
        self._get(f"{API}/schemas/{{id:.+}}", partial(_schema, output_schemas()))
        self._get(f"{API}/events/stream", self._events)
        for name in pages.PAGES:
            self._get(f"/{name}", self._page)
        for name in pages.PAGES_OF_ONE:
            self._get(f"/{name}/{{id}}", self._page, None if name == PUBLIC_PAGE else Role.READ)
        self._get("/{unknown}", self._page)
        for question in map(load_question, QUESTIONS):
            answer = partial(api.answer_question, question, self.record)
            self._get(f"{API}{question.path}", answer)
        for change in api.CHANGE_RESOURCES:
            self.app.router.add_post(
                f"{API}{change.path}", self._guarded(partial(self._change, change), Role.OPERATE)
            )
        for file in static.iterdir():
            self.app.router.add_get(f"/static/{file.name}", partial(_file, file))

    def _get(self, path: str, handler: Handler, role: Role | None = Role.READ) -> None:
        self.app.router.add_get(path, self._guarded(handler, role))

    def _guarded(self, handler: Handler, role: Role | None) -> Handler:
        """Return a handler for callers with a role; None: for everybody."""

        async def handle(request: web.Request) -> web.StreamResponse:
            caller = await self.callers.caller(request)
            CALLER.set(caller)
            CALLER_KEY.set(caller.name or self.connections.peer(request.transport))
            if role is not None and caller.role not in (role, Role.OPERATE):
                if caller.name:
                    raise web.HTTPForbidden(text=f"{caller.name} may not {role.value} here")
                raise web.HTTPUnauthorized(
                    text=f"to {role.value}, use a token, a client certificate, or the unix socket",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            return await handler(request)

        return handle

    async def _change(self, change: api.Change, request: web.Request) -> web.Response:
        self._check_origin(request)
        return await api.request_change(change, self.record, request, CALLER.get().name)

    def _check_origin(self, request: web.Request) -> None:
        """Refuse a change that a page of another origin sends with the log-in of the person who looks at it."""
        ours = f"{request.scheme}://{request.host}"
        if self.callers.is_proxied(request) and self.section.proxy and bearer_of(request) is None:
            ours = self.section.proxy.origin
            origin = request.headers.get("Origin", "none")
        else:
            origin = request.headers.get("Origin", ours)
        if origin != ours:
            raise web.HTTPForbidden(text=f"a change from a page of origin {origin} is refused")

    async def _ready(self, request: web.Request) -> web.Response:
        def examined() -> Answered:
            found = health(self.record.reader)
            return Answered(
                (READY if found.ready else "".join(f"{each}\n" for each in found.reasons)).encode(),
                "text/plain",
            )

        found = await self._vital("ready", examined)
        status = HTTPStatus.OK if found.body == READY.encode() else HTTPStatus.SERVICE_UNAVAILABLE
        return web.Response(text=found.body.decode(), status=status)

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        kind = content_type(accept)

        def make() -> Answered:
            return Answered(exposition(self.record.reader, accept, trouble_kinds), kind)

        found = await self._vital(f"metrics {kind}", make)
        return api.response_of(found, request, {})

    async def _vital(self, key: str, make: Callable[[], Answered]) -> Answered:
        """Return an answer for monitoring, which is made once for all, and also without a record."""
        try:
            version = await self.record.version(vital=True)
        except StoreError:
            version = ""
        return await self.record.answer(key, version, make, vital=True)

    async def _page(self, request: web.Request) -> web.Response:
        # everybody may ask for the public page: another query must not cost another reading
        is_public = request.path.startswith(f"/{PUBLIC_PAGE}/")
        query = {} if is_public else dict(request.query)

        def rendered() -> Answered:
            with one_moment(self.record.reader.now):
                return Answered(
                    pages.render(request.path, self.record.reader, query).encode(), "text/html"
                )

        try:
            key = request.path if is_public else str(request.rel_url)
            return await api.answer_shared(self.record, request, key, rendered)
        except VerbError as error:
            status = _status_of(error)
            text = pages.render_error(status.phrase.capitalize(), error.lines)
            return web.Response(text=text, content_type="text/html", status=status)
        except StoreError as error:
            text = pages.render_error("The record cannot be read", [str(error)])
            return web.Response(text=text, content_type="text/html", status=503)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if request.method == "HEAD":  # it has no end, and no body
            return web.Response(content_type="text/event-stream")
        return await self.stream.serve(
            request, request.headers.get("Last-Event-ID", ""), CALLER.get().until
        )

    @web.middleware
    async def _problems(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.connections.used(request.transport)
        try:
            return await handler(request)
        except web.HTTPException as refusal:
            if refusal.status < 400:
                raise
            return _problem(HTTPStatus(refusal.status), refusal.text or "", refusal.headers)
        except TooManyReadsError:
            return _problem(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once", {"Retry-After": "5"}
            )
        except Exception as error:
            return _problem_of(error, request)


def _status_of(error: VerbError) -> HTTPStatus:
    return STATUS_OF_EXIT.get(error.code, HTTPStatus.NOT_FOUND)


def _problem_of(error: Exception, request: web.Request) -> web.Response:
    if isinstance(error, StoreError):
        return _problem(
            HTTPStatus.SERVICE_UNAVAILABLE, str(error), {"Retry-After": "5"}, Exit.FAILED
        )
    if isinstance(error, VerbError):
        return _problem(_status_of(error), "\n".join(error.lines), exit_code=error.code)
    log.exception("request.failed", method=request.method, path=request.path)
    return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a mistake in the service; its log has more")


def _problem(
    status: HTTPStatus, detail: str, headers: Any = None, exit_code: Exit | None = None
) -> web.Response:
    problem = api.ProblemDetails(
        title=status.phrase, status=status, detail=detail, exit_code=exit_code
    )
    tree = problem.model_dump(exclude_none=True)
    kept = {
        name: value
        for name, value in (headers or {}).items()
        if not name.lower().startswith("content-")
    }
    return web.json_response(
        tree, status=status.value, content_type="application/problem+json", headers=kept
    )


async def _healthy(request: web.Request) -> web.Response:
    return web.Response(text="healthy\n")


async def _document(tree: object, request: web.Request) -> web.Response:
    return web.json_response(tree)


async def _schema(schemas: Mapping[str, object], request: web.Request) -> web.Response:
    name = request.match_info["id"]
    if name not in schemas:
        raise unknown("schema", name, list(schemas))
    return web.json_response(schemas[name], content_type="application/schema+json")


async def _file(path: Path, request: web.Request) -> web.FileResponse:
    return web.FileResponse(path)


async def _secure(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
