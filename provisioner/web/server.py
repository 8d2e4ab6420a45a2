"""The web service: routes with the role that each needs, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.options import Exit, VerbError
from provisioner.cli.remote import API
from provisioner.cli.schema import output_schemas
from provisioner.config.models import Role, WebSection
from provisioner.monitoring.metrics import content_type, exposition, health
from provisioner.store import StoreError
from provisioner.store.reader import Reader
from provisioner.web import api, openapi, pages
from provisioner.web.identity import Authenticator, Caller, bearer_of
from provisioner.web.record import Answered, SharedRecord, TooManyReadsError
from provisioner.web.stream import EventStream
from provisioner.web.tokens import TokenVerifier

log = structlog.get_logger()

Handler = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STATUS_OF_EXIT = {Exit.USAGE: HTTPStatus.BAD_REQUEST, Exit.UNMET: HTTPStatus.CONFLICT}
PUBLIC_PAGE = "job"
"""Tells users why their job waits; it needs no identity."""


class WebService:
    """The application, with what its handlers share."""

    def __init__(self, reader: Reader, section: WebSection) -> None:
        self.section, self.record = section, SharedRecord(reader)
        self.stream, self.tokens = EventStream(self.record), TokenVerifier(section.tokens)
        self.callers = Authenticator(section, self.tokens)
        self.app = web.Application(middlewares=[self._problems], client_max_size=api.LARGEST_BODY)
        self.app.on_response_prepare.append(_secure)
        self.app.on_shutdown.append(self.stream.cut_off)
        self.app.cleanup_ctx.append(self._running)
        self._add_routes()

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        async with self.tokens:
            stream = asyncio.create_task(self.stream.run())
            yield
            stream.cancel()
            with suppress(asyncio.CancelledError):
                await stream
            self.record.close()

    def _add_routes(self) -> None:
        resources = api.resources()
        described = Answered(json.dumps(openapi.document(resources)).encode(), "application/json").compressed()
        schemas = output_schemas()

        async def schema(request: web.Request, caller: Caller) -> web.Response:
            name = request.match_info["id"]
            if name not in schemas:
                raise opt.unknown("schema", name, list(schemas))
            return web.json_response(schemas[name], content_type="application/schema+json")

        async def change(request: web.Request, caller: Caller, *, wanted: api.Change) -> web.Response:
            self._check_origin(request)
            return await api.request_change(wanted, self.record, request, caller)

        self.get("/-/healthy", lambda request, caller: _given(web.Response(text="healthy\n")), None)
        self.get("/-/ready", self._ready)
        self.get("/metrics", self._metrics)
        self.get(f"{API}/series", lambda request, caller: api.answer_series(self.record, request))
        self.get(f"{API}/openapi.json", lambda request, caller: _given(api.response_of(described, request, {})))
        self.get(f"{API}/schemas", lambda request, caller: _given(web.json_response(list(schemas))))
        self.get(f"{API}/schemas/{{id:.+}}", schema)
        self.get(f"{API}/events/stream", self._events)
        for name in pages.PAGES:
            self.get(f"/{name}", self._page)
        for name in pages.PAGES_OF_ONE:
            self.get(f"/{name}/{{id}}", self._page, None if name == PUBLIC_PAGE else Role.READ)
        self.get("/{unknown}", self._page)
        for file in (Path(str(files("provisioner.web"))) / "static").iterdir():
            self.app.router.add_get(f"/static/{file.name}", partial(_file, file))
        for resource in resources:
            self.get(resource.path, partial(self._resource, resource))
        for path, each in api.CHANGE_RESOURCES.items():
            self._add("POST", f"{API}{path}", partial(change, wanted=each), Role.OPERATE)

    def get(self, path: str, handler: Handler, role: Role | None = Role.READ) -> None:
        """Add a page. ``role``: what its callers need; None: everybody may see it."""
        self._add("GET", path, handler, role)

    def _add(self, method: str, path: str, handler: Handler, role: Role | None) -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            caller = await self.callers.caller(request)
            if role is not None and caller.role is not role and caller.role is not Role.OPERATE:
                if caller.name:
                    raise web.HTTPForbidden(text=f"{caller.name} may not {role.value} here")
                raise web.HTTPUnauthorized(
                    text=f"to {role.value}, use a token, a client certificate, or the unix socket",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            return await handler(request, caller)

        self.app.router.add_route(method, path, handle)
        if method == "GET":
            self.app.router.add_route("HEAD", path, handle)

    def _check_origin(self, request: web.Request) -> None:
        """Refuse a change that a page of another origin sends with the log-in of the person who looks at it."""
        ours = f"{request.scheme}://{request.host}"
        if self.callers.is_proxied(request) and self.section.proxy and bearer_of(request) is None:
            ours, origin = self.section.proxy.origin, request.headers.get("Origin", "none")
        else:
            origin = request.headers.get("Origin", ours)
        if origin != ours:
            raise web.HTTPForbidden(text=f"a change from a page of origin {origin} is refused")

    async def _resource(self, resource: api.Resource, request: web.Request, caller: Caller) -> web.StreamResponse:
        return await api.answer_resource(resource, self.record, request)

    async def _ready(self, request: web.Request, caller: Caller) -> web.Response:
        found = await self.record.glance(health, self.record.reader)
        text = "ready\n" if found.ready else "".join(f"{reason}\n" for reason in found.reasons)
        return web.Response(text=text, status=HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _metrics(self, request: web.Request, caller: Caller) -> web.Response:
        accept = request.headers.get("Accept", "")
        body = await self.record.run(exposition, self.record.reader, accept)
        return web.Response(body=body, headers={"Content-Type": content_type(accept)})

    async def _page(self, request: web.Request, caller: Caller) -> web.Response:
        query, reader = dict(request.query), self.record.reader

        def rendered() -> Answered:
            with out.one_moment():
                return Answered(pages.render(request.path, reader, query).encode(), "text/html")

        try:
            # everybody may ask for the public page: another query must not cost another reading
            asked = request.path if request.path.startswith(f"/{PUBLIC_PAGE}/") else str(request.rel_url)
            found = await self.record.answer(asked, await self.record.version(), rendered)
        except VerbError as error:
            text = pages.render_error("Not found", error.lines)
            return web.Response(text=text, content_type="text/html", status=HTTPStatus.NOT_FOUND)
        return api.response_of(found, request, {"Cache-Control": "no-cache"})

    async def _events(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        if request.method == "HEAD":  # it has no end, and no body
            return web.Response(content_type="text/event-stream")
        return await self.stream.serve(request, request.headers.get("Last-Event-ID", ""))

    @web.middleware
    async def _problems(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as refusal:
            if refusal.status < 400:
                raise
            return _problem(HTTPStatus(refusal.status), refusal.text or "", refusal.headers)
        except TooManyReadsError:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once", {"Retry-After": "5"})
        except Exception as error:
            return _problem_of(error, request)


def _problem_of(error: Exception, request: web.Request) -> web.Response:
    if isinstance(error, StoreError):
        return _problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), {"Retry-After": "5"}, Exit.FAILED)
    if hasattr(error, "format_message"):  # usage errors have no fixed class in Typer
        return _problem(HTTPStatus.BAD_REQUEST, error.format_message(), exit_code=Exit.USAGE)
    known = opt.verb_error(error) if isinstance(error, VerbError) else None
    if known is None:
        log.exception("request.failed", method=request.method, path=request.path)
        return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a mistake in the service; its log has more")
    status = STATUS_OF_EXIT.get(known.code, HTTPStatus.NOT_FOUND)
    return _problem(status, "\n".join(known.lines), exit_code=known.code)


def _problem(status: HTTPStatus, detail: str, headers: Any = None, exit_code: Exit | None = None) -> web.Response:
    tree = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    tree |= {"exit_code": exit_code.value} if exit_code is not None else {}
    kept = {name: value for name, value in (headers or {}).items() if not name.lower().startswith("content-")}
    return web.json_response(tree, status=status.value, content_type="application/problem+json", headers=kept)


async def _given(response: web.Response) -> web.Response:
    return response


async def _file(path: Path, request: web.Request) -> web.FileResponse:
    return web.FileResponse(path)


async def _secure(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
