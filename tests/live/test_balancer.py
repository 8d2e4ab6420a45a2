"""Real Triton servers behind a real haproxy that is filled through its run-time API, with real clients."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner.interfaces import UnavailableError
from provisioner.model import DroneId
from provisioner.services.balancer_config import (
    KEYS,
    BalancedService,
    balancer_config,
    hashed_tokens,
    tokens_file,
)
from provisioner.services.haproxy import BalancerView, Haproxy
from provisioner.services.servers import BalancedServer
from provisioner.settings import Service
from tests.labs.haproxy import HaproxyPrograms, LabHaproxy, running_haproxy
from tests.labs.htcondor import lab_directory, until
from tests.labs.ports import free_port
from tests.labs.triton import KEY, Answers, TritonPrograms, TritonServer, running_tritons

pytestmark = pytest.mark.xdist_group("inference")
MODEL = "deepmet:1"
TOKENS = {"cms": "the token of cms", "atlas": "the token of atlas"}
PROTOCOLS = ("grpc", "http")
REFUSED = {
    "grpc": "StatusCode.UNAVAILABLE no server of cms is ready",
    "http": "503 no server of cms is ready",
}


@dataclass
class Balanced:
    """A haproxy with one service, and clients of it."""

    tritons: TritonPrograms
    haproxy: LabHaproxy
    ports: dict[str, int]
    client: Haproxy

    def sync(
        self, servers: Sequence[TritonServer], draining: Sequence[TritonServer] = ()
    ) -> BalancerView:
        told = [
            BalancedServer(
                DroneId(f"d-{each.http_port}"), "cms", "localhost", each.http_port, each.grpc_port,
                draining=each in draining,
            )
            for each in servers
        ]  # fmt: skip
        return asyncio.run(self.client.sync(told, time.time()))

    def load(self, protocol: str, rate: float, seconds: float) -> Answers:
        found = self.tritons.load(
            protocol, self.ports[protocol], MODEL, rate, seconds, TOKENS["cms"]
        )
        return found.answers()


@contextmanager
def balanced(directory: Path) -> Iterator[Balanced]:
    programs, tritons = HaproxyPrograms.fetched(), TritonPrograms.fetched()
    ports = {protocol: free_port() for protocol in PROTOCOLS}
    service = Service(
        name="cms", at_most=4, http_port=ports["http"], grpc_port=ports["grpc"], concurrency=4
    )
    socket = directory / "admin.sock"
    files = {
        "haproxy.cfg": balancer_config(
            [BalancedService(service, has_tokens=True, has_key=True)], socket, directory
        ),
        tokens_file("cms"): hashed_tokens(TOKENS),
        KEYS: f"cms {KEY}\n",
    }
    for name, text in files.items():
        (directory / name).write_text(text)
    assert "WARNING" not in programs.checked(directory / "haproxy.cfg")
    with running_haproxy(programs, directory, socket) as haproxy:
        yield Balanced(tritons, haproxy, ports, Haproxy(socket, {"cms": True}))


@pytest.fixture(scope="module")
def lab() -> Iterator[Balanced]:
    with lab_directory("balancer") as directory, balanced(directory) as found:
        yield found


@pytest.fixture(scope="module")
def servers(lab: Balanced) -> Iterator[list[TritonServer]]:
    """Three servers, which need 30 ms for a request each."""
    ports = [next(_ports()) for _ in range(3)]
    with running_tritons(lab.tritons, lab.haproxy.directory, ports, 0.03) as found:
        yield found


def _ports() -> Iterator[int]:
    """Three free ports in a row each."""
    while True:
        first = free_port()
        if free_port() == first + 1 and free_port() == first + 2:
            yield first


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_a_server_each_call_is_refused_at_once_and_counts(
    lab: Balanced, protocol: str
) -> None:
    before = lab.sync(()).services[0]

    answers = lab.tritons.ask(protocol, lab.ports[protocol], TOKENS["cms"])

    assert answers["index"][0] == answers["metadata"][0] == REFUSED[protocol]
    assert answers["ready"][0] == ("not ready" if protocol == "http" else REFUSED[protocol])
    assert lab.haproxy.statistics(f"cms-{protocol}")["qmax"] == "0", "none waits for a server"
    after = lab.sync(()).services[0]
    assert after.refused - before.refused == after.requests - before.requests == 3
    assert after.requested_at > before.requested_at


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_reach_models_with_a_token_and_never_the_administration_of_servers(
    lab: Balanced, servers: list[TritonServer], protocol: str
) -> None:
    before = lab.sync(servers).services[0]

    right = lab.tritons.ask(protocol, lab.ports[protocol], TOKENS["atlas"])
    wrong = lab.tritons.ask(protocol, lab.ports[protocol], "the token of nobody")
    without = lab.tritons.ask(protocol, lab.ports[protocol])
    assert {name: right[name][0] for name in ("index", "ready", "metadata")} == {
        "index": "ok",
        "ready": "ok",
        "metadata": "ok",
    }
    assert "not a call of clients" in right["load"][0]
    for refused in (wrong, without):
        assert {status for name, (status, _) in refused.items() if name != "ready"} == {
            "StatusCode.UNAUTHENTICATED no valid token for cms"
            if protocol == "grpc"
            else "401 no valid token for cms"
        }
    after = lab.sync(servers).services[0]
    assert after.requests - before.requests == 3, "requests without a token are no demand"
    assert after.by_vo["atlas"] - before.by_vo.get("atlas", 0) == 3
    assert after.by_vo.get("cms") == before.by_vo.get("cms")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("token", ["", TOKENS["cms"], KEY])
def test_without_the_key_nobody_passes_by_the_balancer(
    lab: Balanced, servers: list[TritonServer], protocol: str, token: str
) -> None:
    """A token is no key, nor is the key in the header of a token."""
    own_port = servers[0].http_port + (protocol == "grpc")

    answers = {**lab.tritons.ask(protocol, own_port, token, everything=True)}

    assert answers.pop("ready")[0] == "ok", "the balancer checks it"
    assert len(answers) == 15
    restricted = re.compile(r"This (API|protocol) is restricted, expecting header")
    assert [name for name, (said, _) in answers.items() if not restricted.search(said)] == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_servers_share_the_requests(
    lab: Balanced, servers: list[TritonServer], protocol: str
) -> None:
    lab.sync(servers)
    load = lab.tritons.load(protocol, lab.ports[protocol], MODEL, 60, 3, TOKENS["cms"])

    def all_work() -> bool:
        view = lab.sync(servers)
        return all(view.in_flight.values()) and view.services[0].requests_per_s > 0

    until(all_work, 30, what="each server has a request", every_s=0.05)

    answers = load.answers()
    assert (len(answers.rows), answers.errors) == (180, {})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_draining_server_ends_what_it_has_and_gets_no_more(
    lab: Balanced, servers: list[TritonServer], protocol: str
) -> None:
    one, two, _ = servers
    lab.sync([one, two])
    load = lab.tritons.load(protocol, lab.ports[protocol], MODEL, 50, 4, TOKENS["cms"])
    until(lambda: all(lab.sync([one, two]).in_flight.values()), 30, every_s=0.05)

    def is_empty() -> bool:
        return lab.sync([one, two], draining=[two]).in_flight[f"d-{two.http_port}"] == 0

    until(is_empty, 10, what="it has no requests", every_s=0.05)
    assert is_empty(), "it gets no more"
    lab.sync([one])

    assert load.answers().errors == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_killed_server_costs_its_own_requests_at_most(
    lab: Balanced, servers: list[TritonServer], protocol: str
) -> None:
    lab.sync(servers)
    load = lab.tritons.load(protocol, lab.ports[protocol], MODEL, 60, 4, TOKENS["cms"])
    victim = servers[-1]
    until(lambda: lab.sync(servers).in_flight[f"d-{victim.http_port}"], 30, every_s=0.05)

    victim.kill()

    answers = load.answers()
    assert len(answers.rows) == 240
    assert answers.errors.total() <= 4, answers.errors  # its concurrency
    victim.begin(lab.tritons, 0.03)
    until(victim.is_ready, 60, every_s=0.3)


def test_a_restarted_haproxy_serves_again_after_one_call(
    lab: Balanced, servers: list[TritonServer]
) -> None:
    lab.sync(servers)
    lab.load("grpc", 20, 0.5)
    before = lab.sync(servers).services[0]

    lab.haproxy.kill()
    with pytest.raises(UnavailableError, match=r"haproxy does not answer at .*admin\.sock"):
        lab.sync(servers)
    lab.haproxy.begin()
    view = lab.sync(servers)

    assert view.services[0].requests == before.requests, "its counters began at zero"
    assert lab.load("http", 20, 0.5).errors == {}
    assert lab.sync(servers).services[0].requests == before.requests + 10


def test_more_servers_than_places_are_reported(lab: Balanced) -> None:
    servers = [TritonServer(lab.haproxy.directory / "none", 10 + 3 * n) for n in range(9)]

    view = lab.sync(servers)

    assert len(view.in_flight) == 8
    assert view.notices == (
        "haproxy has no place for 1 servers of cms: install the output of `render balancer`",
    )
