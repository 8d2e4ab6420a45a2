"""The web service as a process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from provisioner import systemd
from provisioner.answers.errors import VerbError

if TYPE_CHECKING:
    from aiohttp import web

    from provisioner.config.models import WebSection, WebTlsSection
    from provisioner.store.database import Place
    from provisioner.web.server import WebService

log = structlog.get_logger()

CLIENTS_WAIT_S = 5.0
SERVICE_GARBAGE = 100_000
"""Values left behind before they are looked through: `/class/1` with 100,000 drones takes 6.5 s instead of 7.8."""
SOCKET_NAME = "web.sock"
RUN_DIRECTORY = Path("/run/provisioner-web")
"""Directory of the socket where the record is on a server."""


async def serve_record(store: Place, section: WebSection) -> None:
    """Serve a record until SIGTERM or SIGINT."""
    from provisioner.web.record import SharedReader
    from provisioner.web.server import WebService

    gc.set_threshold(SERVICE_GARBAGE)
    service = WebService(SharedReader(store), section)
    beside = store.parent if isinstance(store, Path) else RUN_DIRECTORY
    await _serve(service, section.socket or beside / SOCKET_NAME)


async def _serve(service: WebService, path: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    from aiohttp import web

    from provisioner.web import connections

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        service.app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=CLIENTS_WAIT_S,
        keepalive_timeout=connections.REQUEST_TIMEOUT_S,
    )
    await runner.setup()
    try:
        places = await listen(runner, service.section, path)
        log.info("service.started", at=places, store=str(service.record.reader.path))
        systemd.notify("READY=1")
        beats = asyncio.create_task(systemd.heartbeat())
        await stop.wait()
        beats.cancel()
        systemd.notify("STOPPING=1")
        log.info("service.stopping")
    finally:
        await runner.cleanup()


async def listen(runner: web.AppRunner, section: WebSection, path: Path) -> list[str]:
    """Open all listeners and return where they are. Raises :class:`VerbError` for one that cannot be opened."""
    from provisioner.config.models import parse_address
    from provisioner.web.connections import BoundedSite, tcp_sockets, unix_sockets
    from provisioner.web.server import CONNECTIONS

    unix_paths = [path, *([section.proxy.socket] if section.proxy else [])]
    addresses: list[tuple[str, str, ssl.SSLContext | None]] = []
    if section.listen:
        addresses.append(("http", section.listen, None))
    if section.tls:
        addresses.append(("https", section.tls.listen, tls_context(section.tls)))
    site_of = partial(BoundedSite, runner, runner.app[CONNECTIONS])
    sites = {
        f"unix:{place}": site_of(partial(unix_sockets, _unused(place))) for place in unix_paths
    } | {
        f"{scheme}://{address}": site_of(partial(tcp_sockets, *parse_address(address)), context)
        for scheme, address, context in addresses
    }
    for place, site in sites.items():
        try:
            await site.start()
        except OSError as error:
            raise VerbError(f"cannot listen at {place}: {error.strerror or error}") from None
    os.chmod(path, 0o660)
    if section.proxy:
        # each connection is checked: the kernel tells whose it is
        os.chmod(section.proxy.socket, 0o666)
    return [*sites]


def _unused(path: Path) -> Path:
    """Return a path at which nobody listens. Raises :class:`VerbError` if somebody does."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        raise VerbError(f"cannot listen at unix:{path}: another service does")
    return path


def tls_context(section: WebTlsSection) -> ssl.SSLContext:
    """Return the context of the listener with TLS. Raises :class:`VerbError` for files that do not do."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def refuse_passphrase() -> str:
        raise VerbError(f"web.tls: the key {section.key} has a passphrase: write one without")

    try:
        context.load_cert_chain(section.certificate, section.key, refuse_passphrase)
        if ca := section.client_ca:
            context.load_verify_locations(
                **({"capath": str(ca)} if ca.is_dir() else {"cafile": str(ca)})
            )
            context.verify_mode = ssl.CERT_OPTIONAL
    except OSError as error:
        raise VerbError(f"web.tls: certificate, key or client_ca cannot be used: {error}") from None
    return context
