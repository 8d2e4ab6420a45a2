"""A drone with an inference server, run as a site runs it: its whole life on this host, without a pool."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.drone import script
from tests.labs import mps as labs_mps
from tests.labs.htcondor import DroneProcess, account, lab_directory, own, until

SERVER = """
import http.server, os, signal, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(open(os.environ["SERVICE_KEY_FILE"], "rb").read())

    def log_message(self, *_):
        pass

def leave(*_):
    print("told to leave", flush=True)
    time.sleep(float(os.environ.get("LEAVES_IN_S", "0")))
    os._exit(0)

signal.signal(signal.SIGTERM, leave)
port = int(os.environ["SERVICE_HTTP_PORT"])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def lab() -> Iterator[Path]:
    with lab_directory("service") as directory:
        yield directory


def free_port() -> int:
    """The first of three ports that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def service_drone(
    lab: Path, name: str, command: str = "", checks: str = "", **env: str
) -> tuple[DroneProcess, int]:
    """Start a drone with a server, and return it with the server's port. ``checks``: one of the site."""
    home = lab / name
    (home / "checks").mkdir(parents=True)
    if checks:
        (home / "checks/site.sh").write_text(checks)
    port = int(env.get("SERVICE_HTTP_PORT", 0)) or free_port()
    (home / "server.py").write_text(SERVER)
    run = command or "exec python3 -I server.py\n"
    (home / "service.sh").write_text(run)
    (home / "service.key").write_text("secret")
    (home / "drone.sh").write_bytes(script("service_drone.sh"))
    account().give(home)
    told = {
        "PATH": "/usr/bin:/bin",
        "DRONE_DIR": str(home),
        "DRONE_ID": own(name),
        "DRONE_SITE": "s",
        "DRONE_TYPE": "t",
        "DRONE_GPUS": "0",
        "DRONE_DISK_MIB": "1",
        "DRONE_GRACE_S": "6",
        "SERVICE_NAME": "cms",
        "SERVICE_MODELS": "deepmet:3 pnet:1",
        "SERVICE_HTTP_PORT": str(port),
        "SERVICE_GRPC_PORT": str(port + 1),
        "SERVICE_METRICS_PORT": str(port + 2),
        "SERVICE_KEY_FILE": "service.key",
    }
    with (lab / f"{name}.said").open("wb") as said:
        process = subprocess.Popen(
            ["sh", "drone.sh"],
            env={**told, **env},
            cwd=home,
            stdout=said,
            stderr=said,
            **account().run,
        )
    return DroneProcess(told["DRONE_ID"], home, process), port


def answer(port: int) -> str:
    """Answer of its server; empty while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5) as reply:
            return str(reply.read().decode())
    except (urllib.error.URLError, OSError):
        return ""


def ends(drone: DroneProcess, code: int, reason: str) -> str:
    """The drone has ended so, with all its processes and files. Return why."""
    assert drone.wait() == code, drone.story()
    assert (drone.outcome["reason"], drone.outcome["exit"]) == (reason, str(code))
    assert not drone.leftovers()
    assert {each.name for each in drone.dir.iterdir()} == {
        *("outcome", "log", "drone.sh", "server.py")
    }
    return drone.outcome["why"].replace("%20", " ")


def log_of(drone: DroneProcess) -> str:
    return (drone.dir / "log/server.log").read_text()


def test_it_serves_with_its_secret_until_it_is_told_to_leave(lab: Path) -> None:
    drone, port = service_drone(lab, "life")
    assert until(lambda: answer(port), 15, what="the server answers") == "secret"
    drone.send(signal.SIGTERM)
    assert ends(drone, 0, "stopped") == "told to leave by SIGTERM"
    assert log_of(drone) == "told to leave\n", "once"


def test_a_server_has_the_grace_for_what_it_works_on(lab: Path) -> None:
    drone, port = service_drone(lab, "grace", LEAVES_IN_S="2")
    until(lambda: answer(port), 15, what="the server answers")
    drone.send(signal.SIGTERM)
    ends(drone, 0, "stopped")
    assert int(drone.outcome["seconds"]) >= 2 and log_of(drone) == "told to leave\n"


def test_one_that_does_not_leave_is_killed_before_the_grace_is_over(lab: Path) -> None:
    drone, port = service_drone(lab, "deaf", LEAVES_IN_S="600", DRONE_GRACE_S="4")
    until(lambda: answer(port), 15, what="the server answers")
    drone.send(signal.SIGTERM)
    ends(drone, 0, "stopped")


def test_a_server_that_its_command_left_in_the_background_is_told_and_ended(lab: Path) -> None:
    drone, port = service_drone(lab, "shell", "python3 -I server.py\necho done\n")
    until(lambda: answer(port), 15, what="the server answers")
    drone.send(signal.SIGTERM)
    ends(drone, 0, "stopped")
    assert "told to leave" in log_of(drone)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo no model >&2; exit 3\n", "the server ended with status 3: no model"),
        ("kill -KILL $$\n", "the server ended by signal 9: "),
    ],
)
def test_a_server_that_ends_by_itself_is_a_fault(lab: Path, command: str, why: str) -> None:
    drone, _ = service_drone(lab, "died", command)
    assert ends(drone, 74, "server-died").strip() == why.strip()


def test_the_log_of_a_server_has_a_limit(lab: Path) -> None:
    noise = "while sleep 0.02; do head -c 20000 /dev/zero | tr '\\0' x; done & exec python3 -I server.py\n"
    drone, port = service_drone(lab, "noise", noise, SERVICE_LOG_KIB="100")
    logs = drone.dir / "log"
    until(lambda: answer(port) and (logs / "server.log.1").exists(), 30, what="it was cut")
    cut_at = (logs / "server.log.1").stat().st_mtime
    until(lambda: (logs / "server.log.1").stat().st_mtime > cut_at, 30, what="again")
    assert (logs / "server.log.1").stat().st_size == 100 * 1024
    drone.send(signal.SIGTERM)
    ends(drone, 0, "stopped")
    assert "told to leave" in log_of(drone)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGQUIT])
def test_shared_memory_of_a_server_is_removed(lab: Path, sent: signal.Signals) -> None:
    shared = Path("/dev/shm") / own("shared memory")
    maps = "import mmap, os, sys, time; f = open(sys.argv[1], 'w+b'); f.truncate(4096)\n"
    maps += "m = mmap.mmap(f.fileno(), 4096); f.close(); time.sleep(600)"
    drone, _ = service_drone(lab, "shared", f"exec python3 -I -c \"{maps}\" '{shared}'\n")
    until(lambda: shared.exists() and shared.stat().st_size, 15, what="it has shared memory")
    drone.send(sent)
    ends(drone, 0, "stopped")
    assert not shared.exists()


def test_it_ends_at_its_walltime(lab: Path) -> None:
    drone, _ = service_drone(lab, "walltime", DRONE_WALLTIME_S="9")
    assert ends(drone, 0, "walltime") == "the end of its 9 s"
    assert int(drone.outcome["seconds"]) <= 9


def test_a_port_of_another_program_is_not_shared(lab: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        drone, _ = service_drone(lab, "port", SERVICE_HTTP_PORT=str(port))
        assert ends(drone, 74, "port-taken") == f"port {port} of this node is in use"


def test_a_check_that_fails_later_ends_it(lab: Path) -> None:
    check = f"if [ -e {lab}/broken ]; then echo the disk is broken; exit 1; fi\n"
    drone, port = service_drone(lab, "checked", checks=check, DRONE_CHECK_S="1")
    until(lambda: answer(port), 15, what="the server answers")
    (lab / "broken").touch()
    assert ends(drone, 71, "check-failed") == "check site failed: the disk is broken"
    assert log_of(drone) == "told to leave\n"


@pytest.mark.parametrize("errors", [0, 3])
def test_its_gpu_is_checked_without_htcondor(lab: Path, errors: int) -> None:
    smi = lab / "nvidia-smi"
    smi.write_text(
        f"#!/bin/sh\ncase $1 in --query-gpu*) echo '0, GPU-a, {errors}' ;; "
        "-L) echo 'GPU 0: A100 (UUID: GPU-a)' ;; esac\n"
    )
    smi.chmod(0o755)
    drone, port = service_drone(lab, "gpu", DRONE_GPUS="1", PATH=f"{lab}:/usr/bin:/bin")
    if errors:
        why = "check gpu_check failed: GPU 0 has 3 uncorrectable memory errors"
        assert ends(drone, 71, "check-failed") == why
        return
    until(lambda: answer(port), 15, what="the server answers")
    drone.send(signal.SIGTERM)
    ends(drone, 0, "stopped")


@pytest.fixture
def mps(lab: Path) -> Path:
    """Programs of a node with two GPUs and the stand-in for MPS."""
    smi = lab / "nvidia-smi"
    listing = "".join(f"GPU {n}: A100 (UUID: GPU-{n}{n})\\n" for n in range(2))
    smi.write_text(
        "#!/bin/sh\ncase $1 in --query-gpu*) echo '0, GPU-00, 0'; echo '1, GPU-11, 0' ;; "
        f"-L) printf '{listing}' ;; esac\n"
    )
    smi.chmod(0o755)
    account().give(labs_mps.stand_in(lab))
    return lab


PART = {"DRONE_GPUS": "1", "DRONE_GPU_MILLI": "250", "CUDA_VISIBLE_DEVICES": "1"}
LIMITED = {"DRONE_SHARING": "mps", "DRONE_VRAM_MIB": "10134", **PART}


def test_a_part_of_a_gpu_has_its_limit_of_memory(lab: Path, mps: Path) -> None:
    command = "env >environment\nexec python3 -I server.py\n"
    drone, port = service_drone(lab, "part", command, PATH=f"{mps}:/usr/bin:/bin", **LIMITED)
    until(lambda: answer(port), 15, what="the server answers")
    environment = (drone.dir / "environment").read_text().splitlines()
    (drone.dir / "environment").unlink()
    assert {
        "CUDA_VISIBLE_DEVICES=GPU-11",
        f"CUDA_MPS_PIPE_DIRECTORY={drone.dir}/condor/mps/0",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10134M",
    } <= set(environment)
    drone.send(signal.SIGTERM)
    ends(drone, 0, "stopped")
    assert (mps / "said").read_text().splitlines() == [
        f"start GPU-11 {drone.dir}/log/mps-0",
        "set_default_device_pinned_mem_limit 0 10134M",
        f"start_server -uid {account().uid}",
        "quit -t 1",
    ]


def test_a_server_without_its_limit_ends(lab: Path, mps: Path) -> None:
    drone, port = service_drone(
        lab, "bare", DRONE_CHECK_S="1", PATH=f"{mps}:/usr/bin:/bin", **LIMITED
    )
    until(lambda: answer(port), 15, what="the server answers")
    daemon = drone.dir / "condor/mps/0/nvidia-cuda-mps-control.pid"
    os.kill(int(daemon.read_text()), signal.SIGKILL)
    assert "check mps_check failed: GPU-11: the MPS control daemon" in ends(
        drone, 71, "check-failed"
    )


def test_a_node_without_mps_runs_no_limited_server(lab: Path, mps: Path) -> None:
    (mps / "nvidia-cuda-mps-control").unlink()
    drone, _ = service_drone(lab, "none", PATH=f"{mps}:/usr/bin:/bin", **LIMITED)
    assert "nvidia-cuda-mps-control is not on this host" in ends(drone, 74, "no-mps")


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"SERVICE_NAME": ""}, "SERVICE_NAME is not set"),
        ({"SERVICE_CONTAINER": "a b"}, "SERVICE_CONTAINER has a character that is not one of"),
        ({"SERVICE_KEY_FILE": "other"}, "there is no file"),
    ],
)
def test_what_it_cannot_understand_is_refused(lab: Path, env: dict[str, str], said: str) -> None:
    drone, _ = service_drone(lab, "refused", **env)
    assert drone.wait() == 64 and said in drone.said
