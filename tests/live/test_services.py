"""Inference services of a real controller: real Tritons at the local site, real clients, a real haproxy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from provisioner.answers.lookup import newest_plan
from provisioner.store.measures import MetricKey
from tests.labs.controller import A100, BIG, LabController
from tests.labs.htcondor import Pool, gpu_job, kill, meanwhile, until
from tests.labs.inference import (
    IDLE_S,
    MODEL,
    REQUEST_S,
    InferenceLab,
    InferenceSite,
    ServerCounts,
    running_inference,
)
from tests.labs.triton import Answers, TritonPrograms

pytestmark = pytest.mark.xdist_group("inference")
REFUSED = {
    "grpc": "[StatusCode.UNAVAILABLE] no server of cms is ready",
    "http": "[503] no server of cms is ready",
}


@pytest.fixture
def tritons() -> TritonPrograms:
    return TritonPrograms.fetched()


def tick_seconds(controller: LabController) -> float:
    """Return the time that all ticks on record took."""
    return controller.record.counters()[MetricKey("provisioner_tick_seconds_sum")]


def rises_and_falls(controller: LabController, tritons: TritonPrograms, seconds: int) -> None:
    """From none to one server, to four by 100 requests/s of 30 ms for so long, and to none again."""
    controller.sites = ()
    with running_inference(controller, InferenceSite(tritons)) as lab:
        counts = ServerCounts(lab)
        with meanwhile(counts, every_s=0.5):
            begins = lab.load("grpc", 5, 25)
            lab.until_serving(1)
            one = begins.answers()
            both = [lab.load(protocol, 50, seconds) for protocol in ("grpc", "http")]
            four = [load.answers() for load in both]
            before_s = tick_seconds(controller)
            until(lambda: not lab.drones(), 60, what="no server is left", every_s=0.3)
    assert one.errors_since(one.first_ok_at) == {}
    assert set(one.errors) == {REFUSED["grpc"]}
    assert [answers.errors for answers in four] == [{}, {}]
    assert sum(len(answers.rows) for answers in four) == 100 * seconds
    rising = min(sent for answers in four for sent, _, _ in answers.rows)
    last_sent = max(sent for answers in four for sent, _, _ in answers.rows)
    assert max(counts.within(one.first_ok_at, rising)) <= 2, "0.15 servers are needed, so one"
    full = counts.first_at(4)
    assert full < last_sent, "four are needed"
    assert min(counts.within(full, last_sent)) >= 3
    ticks_s = tick_seconds(controller) - before_s
    stopped = max(each["asked_at"] for each in controller.drones() if each["site"] == "servers")
    assert counts.last_at() <= stopped
    assert stopped - last_sent <= IDLE_S + ticks_s, "a loaded machine ticks slowly"


def test_servers_follow_the_requests_and_none_is_lost(
    lab: tuple[Pool, LabController], tritons: TritonPrograms
) -> None:
    rises_and_falls(lab[1], tritons, 20)


@pytest.mark.matrix
def test_servers_follow_two_minutes_of_requests(
    lab: tuple[Pool, LabController], tritons: TritonPrograms
) -> None:
    rises_and_falls(lab[1], tritons, 120)


def kinds(lab: InferenceLab) -> set[str]:
    """Kinds of the reasons for which the newest plan refuses something."""
    plan = newest_plan(lab.controller.record)
    return {each.reason.kind for each in plan.refusals} if plan else set()


def test_a_server_starts_for_jobs_that_announce_it_and_leaves_after_them(
    lab: tuple[Pool, LabController], tritons: TritonPrograms
) -> None:
    pool, controller = lab
    controller.sites = (replace(BIG, most=4),)
    controller.idle_s = 3
    with running_inference(controller, InferenceSite(tritons)) as inference:
        unknown = pool.submit(gpu_job(0.1, more='+WantsInference = "deepmt:1"'))
        until(lambda: "model-unknown" in kinds(inference), 60, what="it is explained", every_s=0.5)
        until(lambda: pool.history(unknown), 90, what="it ran", every_s=0.5)
        assert not [d for d in controller.drones() if d["site"] == "servers"], "nothing was started"
        until(lambda: not controller.live(), 60, what="no drone is left", every_s=0.3)

        announced = pool.submit(gpu_job(1, more=f'+WantsInference = "{MODEL}"', n=20))
        until(lambda: pool.history(announced), 120, what="the first job ended", every_s=0.3)
        [server] = [d for d in controller.drones() if d["site"] == "servers"]
        until(lambda: len(pool.history(announced)) == 20, 120, every_s=0.5)
        ended_at = max(ad["CompletionDate"] for ad in pool.history(announced))
        until(lambda: not inference.drones(), 60, what="it left", every_s=0.5)

        started = min(ad["JobStartDate"] for ad in pool.history(announced))
        assert int(server["requested_at"]) <= started
        assert time.time() - ended_at < IDLE_S + 20
        output = (pool.dir / "jobs" / f"out.{announced}.0").read_text().splitlines()
        assert f"SONIC_LOCAL_BALANCER_PORT={inference.ports['grpc']}" in output


@pytest.fixture
def serving(lab: tuple[Pool, LabController], tritons: TritonPrograms) -> Iterator[InferenceLab]:
    """Two servers, which stay without requests."""
    _, controller = lab
    controller.sites = ()
    with running_inference(controller, InferenceSite(tritons), at_least=2, idle="5min") as found:
        found.until_serving(2)
        yield found


def test_what_is_killed_harms_no_other_server_and_nothing_runs_twice(serving: InferenceLab) -> None:
    loads = [serving.load(protocol, 15, 45) for protocol in ("grpc", "http")]
    first, second = sorted(each["id"] for each in serving.drones())

    kill(*serving.processes(first, "bin/tritonserver"))
    until(lambda: len(serving.ids() - {first}) == 2, 60, what="it is replaced", every_s=0.3)
    serving.until_serving(2)
    assert second in serving.ids()

    kill(*serving.processes(second))
    until(lambda: second not in serving.ids(), 60, what="it is replaced", every_s=0.3)
    serving.until_serving(2)

    answers = [load.answers() for load in loads]
    assert sum(each.errors.total() for each in answers) <= 2 * 8, "two servers with 8 requests each"


def served(lab: InferenceLab) -> int:
    """Requests that haproxy has sent to servers."""
    return sum(int(lab.haproxy.statistics(f"cms-{each}")["stot"]) for each in ("grpc", "http"))


def test_a_killed_balancer_is_filled_again_by_the_same_servers(serving: InferenceLab) -> None:
    before = serving.ids()
    loads = [serving.load(protocol, 15, 25) for protocol in ("grpc", "http")]
    until(lambda: served(serving) > 60, 60, what="both clients are served", every_s=0.2)

    killed_at = time.time()
    serving.haproxy.kill()
    serving.haproxy.begin()
    serving.until_serving(2)

    for answers in (load.answers() for load in loads):
        assert len(answers.rows) == 15 * 25
        failed = [(sent, done) for sent, done, error in answers.rows if error]
        again_at = min(sent for sent, _, error in answers.rows if sent > killed_at and not error)
        in_flight = [sent for sent, done in failed if sent <= killed_at]
        assert all(done >= killed_at for _, done in failed), "none before"
        assert len(in_flight) <= 2 * 8, "two servers with 8 requests each"
        assert max(sent for sent, _ in failed) < again_at, "none once it was back"
        assert again_at < max(sent for sent, _, _ in answers.rows) - 3
    assert serving.ids() == before


def test_a_controller_killed_in_a_scale_down_loses_no_request(
    lab: tuple[Pool, LabController], tritons: TritonPrograms
) -> None:
    _, controller = lab
    controller.sites = ()
    with running_inference(controller, InferenceSite(tritons), at_least=1) as serving:
        serving.until_serving(1)
        high = serving.load("grpc", 50, 12)
        until(lambda: serving.serving() >= 2, 60, what="a second one serves", every_s=0.3)
        low = serving.load("grpc", 10, 30)
        assert high.answers().errors == {}
        until(lambda: "drone.drain_ordered" in controller.log(), 60, every_s=0.1)
        controller.kill()
        before = serving.ids()
        controller.begin()
        until(lambda: len(serving.ids()) == 1, 60, what="one is left", every_s=0.3)

        assert low.answers().errors == {}
        assert serving.ids() < before
        assert len({*serving.ids()}) == len(serving.drones())


def is_refused_at_once(lab: InferenceLab) -> None:
    """Assert that haproxy answers clients of both protocols itself: no request waits for a server."""
    for protocol in ("grpc", "http"):
        refused = f"cms-{protocol}-refused"
        before = int(lab.haproxy.statistics(refused)["stot"])
        asked = lab.ask(protocol)
        assert "no server of cms is ready" in asked["index"][0]
        load = lab.load(protocol, 10, 2).answers()
        assert (set(load.errors), len(load.rows)) == ({REFUSED[protocol]}, 20)
        assert int(lab.haproxy.statistics(refused)["stot"]) == before + 3 + 20
        backend = lab.haproxy.statistics(f"cms-{protocol}")
        assert (backend["stot"], backend["qmax"]) == ("0", "0")


def is_served_later(lab: InferenceLab) -> None:
    """Assert that clients that ask again are served, and then always."""

    def once_served() -> Answers | None:
        answers = lab.load("grpc", 5, 5).answers()
        return answers if len(answers.rows) > answers.errors.total() else None

    answers = until(once_served, 120, what="a request is served")
    assert answers.errors_since(answers.first_ok_at) == {}


def test_at_a_disabled_site_clients_are_refused_at_once_and_served_later(
    lab: tuple[Pool, LabController], tritons: TritonPrograms
) -> None:
    _, controller = lab
    controller.sites = ()
    with running_inference(controller, InferenceSite(tritons)) as serving:
        controller.prints("sites", "disable", "servers", "--reason", "cooling")
        is_refused_at_once(serving)
        until(lambda: "site-disabled" in kinds(serving), 30, what="there is a reason", every_s=0.5)
        assert not serving.drones()

        controller.prints("sites", "enable", "servers")
        is_served_later(serving)


def test_while_no_gpu_fits_the_type_clients_are_refused_at_once_and_served_later(
    lab: tuple[Pool, LabController], tritons: TritonPrograms
) -> None:
    _, controller = lab
    controller.sites = ()
    site = InferenceSite(tritons, vram_mib=81920)
    with running_inference(controller, site) as serving:
        is_refused_at_once(serving)
        until(lambda: "site-full" in kinds(serving), 30, what="there is a reason", every_s=0.5)
        why = controller.prints("explain", "service", "cms")
        assert "with 81920 MiB" in why and "none like it" in why, why
        assert not serving.drones()

        controller.sites = (replace(site, vram_mib=A100[1]),)
        controller.write()
        controller.prints("reload")
        is_served_later(serving)


def test_without_a_free_gpu_clients_are_refused_at_once_and_served_later(
    lab: tuple[Pool, LabController], tritons: TritonPrograms
) -> None:
    pool, controller = lab
    controller.sites = ()
    controller.idle_s = 3
    with running_inference(controller, InferenceSite(tritons, gpus=1, takes_jobs=True)) as serving:
        ends = pool.dir / "jobs" / "ends"
        cluster = pool.submit(gpu_job(until_there=ends))
        until(lambda: pool.statuses(cluster) == [2], 90, what="a job has the GPU", every_s=0.5)

        is_refused_at_once(serving)
        until(lambda: "site-full" in kinds(serving), 30, what="there is a reason", every_s=0.5)
        assert {each["type"] for each in serving.drones()} == {"servers/a100"}

        ends.touch()
        is_served_later(serving)


def test_each_request_is_on_record_once_by_vo_and_by_model(serving: InferenceLab) -> None:
    controller = serving.controller
    answers = [serving.load(protocol, 15, 6).answers() for protocol in ("grpc", "http")]
    sent = sum(len(each.rows) for each in answers)
    assert [each.errors for each in answers] == [{}, {}]
    serving.ask("http", "a-wrong-token")

    def counted(metric: str, **labels: str) -> float:
        key = MetricKey.of(f"provisioner_{metric}", **labels)
        return controller.record.counters().get(key, 0.0)

    of_model = {"service": "cms", "model": MODEL}
    until(
        lambda: (
            counted("service_model_requests_total", **of_model) == sent
            and counted("service_vo_requests_total", service="cms", vo="cms") == sent
        ),
        30,
        what="all are counted",
    )
    work_s = counted("service_model_compute_seconds_total", **of_model)
    assert work_s == pytest.approx(sent * REQUEST_S, rel=0.5)
    use = {"site": "servers", "type": "triton", "use": "service"}
    assert (
        counted("gpu_seconds_total", **use)
        > 10
        > counted("gpu_seconds_total", **use | {"use": "idle"})
    )
    shown = json.loads(controller.prints("services", "-o", "json"))["items"]
    assert [(each["serving"], each["request_s"] > 0) for each in shown] == [(2, True)]
