"""The configuration of haproxy for inference services, and the files that it reads: hashes of tokens, and keys.

Several servers may stand behind one port for HTTP and one for gRPC. A request that no server can
take is refused at once, so that clients use what they have themselves. HAProxy 2.6 or newer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from provisioner.settings import Service
from provisioner.values import frozen

PROTOCOLS: Final = ("http", "grpc")
KEY_HEADERS: Final = {
    "http": "triton-access-token",
    "grpc": "triton-grpc-protocol-triton-access-token",
}
"""Headers with the key of a service. Triton puts `triton-grpc-protocol-` before the name for gRPC."""
SLOTS_PER_SERVER = 2
"""Servers that are being drained have a place beside their successors."""
KEYS = "services.keys"
"""File with the keys of all services."""
HTTP_CALLS = (
    "/v2(/health/(live|ready)|/models/[^/]+(/versions/[^/]+)?(/(ready|config|stats|infer|generate|generate_stream))?"
    "|/repository/index)?"
)
GRPC_CALLS = (
    "/inference[.]GRPCInferenceService/(ServerLive|ServerReady|ServerMetadata|ModelReady|ModelMetadata|ModelConfig"
    "|ModelStatistics|ModelInfer|ModelStreamInfer|RepositoryIndex)|/grpc[.]health[.]v1[.]Health/(Check|Watch)"
)
"""Clients may neither load models nor use shared memory, logging and tracing of a server: the balancer has its key."""

GLOBAL_SECTION = """\
# HAProxy for the inference services of the provisioner, written by `provisioner render balancer`.
# Install it with its files: provisioner render balancer --to {directory}
# Then: haproxy -c -f {directory}/haproxy.cfg && systemctl reload haproxy
# All servers are empty places, which the controller fills through the socket, also after a restart.
global
    stats socket {socket} mode 660 level admin
    log /dev/log local0

defaults
    mode http
    log global
    option httplog
    option dontlog-normal
    option abortonclose
    option redispatch 1
    retries 3
    retry-on conn-failure
    timeout connect 2s
    timeout client 1h
    timeout queue 5m
    timeout server 10m
"""
SERVICE_SECTIONS = """
frontend {name}-{protocol}
    bind :{port}{bind}
{rules}
    use_backend {name}-{protocol}-refused if {{ nbsrv({name}-{protocol}) eq 0 }}
    default_backend {name}-{protocol}

backend {name}-{protocol}-refused
    http-request {refusal}

backend {name}-{protocol}
    balance leastconn
    http-request del-header authorization
{key}    default-server check inter 1s fall 2 rise 1 observe layer4 error-limit 2 on-error mark-down
    server-template s 1-{slots} 127.0.0.1:1 disabled maxconn {concurrency}{server}
"""
VO_SECTION = """
backend {name}-vos
    stick-table type string len 32 size 1k store http_req_cnt
"""


@frozen
class BalancedService:
    """A service, and the secrets that it has."""

    service: Service
    has_tokens: bool = False
    """Clients need the token of a VO."""
    has_key: bool = False
    """Servers ask the balancer for a key."""


def tokens_file(service: str) -> str:
    """Return the name of the file with the hashes of a service's tokens."""
    return f"{service}.tokens"


def hashed_tokens(tokens: Mapping[str, str]) -> str:
    """Return the lines of that file for the tokens of VOs."""
    hashes = {vo: hashlib.sha256(token.encode()).hexdigest() for vo, token in tokens.items()}
    return "".join(f"{each} {vo}\n" for vo, each in sorted(hashes.items()))


def balancer_config(services: Sequence[BalancedService], socket: Path, directory: Path) -> str:
    """Return haproxy's configuration. The other files are to be in ``directory``, readable by root alone."""
    return "".join(_config(services, socket, directory))


def _config(services: Sequence[BalancedService], socket: Path, directory: Path) -> Iterator[str]:
    yield GLOBAL_SECTION.format(socket=socket, directory=directory)
    for each in services:
        service = each.service
        for protocol in PROTOCOLS:
            yield SERVICE_SECTIONS.format(
                name=service.name,
                protocol=protocol,
                port=service.http_port if protocol == "http" else service.grpc_port,
                bind=" proto h2" if protocol == "grpc" else "",
                rules="\n".join(f"    {rule}" for rule in _rules(each, protocol, directory)),
                refusal=_refusal(protocol, 503, f"no server of {service.name} is ready"),
                key=_key(service.name, protocol, directory) if each.has_key else "",
                slots=SLOTS_PER_SERVER * service.at_most,
                concurrency=service.concurrency,
                server=" proto h2" if protocol == "grpc" else "",
            )
        if each.has_tokens:
            yield VO_SECTION.format(name=service.name)


def _rules(each: BalancedService, protocol: str, directory: Path) -> Iterator[str]:
    """Yield who is refused, and for what: the others are counted by VO."""
    name = each.service.name
    if each.has_tokens:
        tokens = directory / tokens_file(name)
        token = "req.fhdr(authorization),regsub(^[Bb]earer[[:space:]]*,)"  # http_auth_bearer is not in 2.4
        yield f"http-request set-var(txn.vo) {token},sha2(256),hex,lower,map({tokens})"
        refusal = _refusal(protocol, 401, f"no valid token for {name}")
        yield f"http-request {refusal} unless {{ var(txn.vo) -m found }}"
    if protocol == "grpc":
        # haproxy gives an answer without a body no type, and some clients want one
        yield "http-after-response set-header content-type application/grpc unless { res.hdr(content-type) -m found }"
    calls = HTTP_CALLS if protocol == "http" else GRPC_CALLS
    refusal = _refusal(protocol, 403, "not a call of clients")
    yield f"http-request {refusal} unless {{ path_reg ^({calls})/?$ }}"
    if each.has_tokens:
        yield f"http-request track-sc0 var(txn.vo) table {name}-vos"


GRPC_STATUS: Final = {401: 16, 403: 7, 503: 14}
"""UNAUTHENTICATED, PERMISSION_DENIED, UNAVAILABLE"""


def _refusal(protocol: str, status: int, message: str) -> str:
    if protocol == "http":
        body = f'"{{\\"error\\": \\"{message}\\"}}"'
        return f"return status {status} content-type application/json string {body}"
    said = f'hdr grpc-status {GRPC_STATUS[status]} hdr grpc-message "{message}"'
    return f"return status 200 {said}"


def _key(name: str, protocol: str, directory: Path) -> str:
    header = KEY_HEADERS[protocol]
    return f"    http-request set-header {header} %[str({name}),map({directory / KEYS})]\n"
