"""Addresses of servers, and the metrics of Triton, which may say anything."""

from __future__ import annotations

import pytest

from provisioner.model import DroneId, InferenceServer
from provisioner.services.servers import ModelCounters, parse_metrics, server_ports

SERVER = InferenceServer("cms", ("deepmet:3", "pnet:1"), "exec tritonserver", first_port=20000)
TRITON = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="deepmet",version="3"} 40
nv_inference_request_success{model="other",version="1"} 7
nv_inference_count{model="deepmet",version="3"} 40
nv_inference_exec_count{model="deepmet",version="3"} 10
nv_inference_queue_duration_us{model="deepmet",version="3"} 2000000
nv_inference_compute_infer_duration_us{model="deepmet",version="3"} 8e+06
nv_inference_pending_request_count{model="deepmet",version="3"} 2
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
"""


def test_the_metrics_of_a_real_triton() -> None:
    found = parse_metrics(TRITON, SERVER.models)
    assert found["deepmet:3"] == ModelCounters(40, 10, 8e6, 2e6, 2)
    assert found["pnet:1"] == ModelCounters()
    assert found["deepmet:3"].busy_s == pytest.approx(2.0), "10 executions of 0.2 s for 40 requests"


@pytest.mark.parametrize("number", ["NaN", "-1", "+Inf", "1e400", "words", "0x10", "1" * 32])
def test_a_number_that_is_no_count_is_passed_over(number: str) -> None:
    line = f'nv_inference_request_success{{model="deepmet",version="3"}} {number}\n'
    assert parse_metrics(line, SERVER.models)["deepmet:3"] == ModelCounters()


def test_a_server_that_started_again_counts_from_zero() -> None:
    before, after = ModelCounters(100, 50, 9e6, 1e6), ModelCounters(130, 60, 12e6, 1.5e6)
    assert after.since(before) == ModelCounters(30, 10, 3e6, 0.5e6)
    assert ModelCounters(3, 2, 1e5).since(before) == ModelCounters(3, 2, 1e5)


def test_the_ports_of_a_server_follow_from_its_serial_number() -> None:
    first, second = (server_ports(DroneId(f"kit-ab12-{n}"), SERVER) for n in (1, 2))
    assert (first, second) == ((20003, 20004, 20005), (20006, 20007, 20008))
    few = InferenceServer("cms", ("a:1",), "x", first_port=65000, ports=8)
    assert {server_ports(DroneId(f"kit-ab12-{n}"), few)[2] for n in range(9)} == {65002, 65005}
