"""A drone's MPS: each setting is read back, by NVIDIA's own control daemon where this host can have it.

Without a GPU a server of the real daemon dies at once. What needs a living server uses the stand-in
of :mod:`tests.labs.mps`. Nothing here needs HTCondor: stand-ins for two of its programs take a
drone as far as MPS.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from provisioner.drone import script
from tests.labs import mps as labs_mps
from tests.labs.bare_drone import GPU, UUID, bare_drone
from tests.labs.htcondor import account, lab_directory, until

LIMIT_MIB = 5067


@dataclass
class Drone:
    """The directory of a drone with one GPU, and the scripts that it writes there."""

    dir: Path
    programs: Path
    """Directory of ``nvidia-cuda-mps-control``."""

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.programs}:/usr/bin:/bin", "DRONE_DIR": str(self.dir)}

    @property
    def pipes(self) -> Path:
        return self.dir / "condor/mps/0"

    def run(
        self, *command: str | Path, stdin: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        how = {
            "input": stdin,
            "env": {**self.env, **env},
            "cwd": self.dir,
            "text": True,
            "timeout": 120,
        }
        return subprocess.run([*map(str, command)], capture_output=True, **how, **account().run)  # type: ignore[call-overload,no-any-return]

    def start_daemon(self, *, as_root: bool = False) -> None:
        """Start a control daemon, as the drone's account or as root."""
        command = ["timeout", "20", str(self.programs / "nvidia-cuda-mps-control"), "-d"]
        run = {} if as_root else {**account().run}
        subprocess.run(command, env={**self.env, **self.mps}, check=True, timeout=60, **run)  # type: ignore[call-overload]

    @property
    def mps(self) -> dict[str, str]:
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.dir / "log/mps-0"),
            "CUDA_VISIBLE_DEVICES": UUID,
        }

    def tell(self, *lines: str) -> str:
        said = self.run(
            self.programs / "nvidia-cuda-mps-control",
            stdin="".join(f"{line}\n" for line in lines),
            **self.mps,
        )
        return said.stdout

    def mps_sh(self, mode: str) -> tuple[int, str]:
        """Exit status of ``mps.sh``, and what it said."""
        done = self.run("sh", self.dir / "condor/mps.sh", mode)
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout.strip()

    def check(self) -> tuple[int, str]:
        """Exit status and last line of the check that the drone repeats."""
        done = self.run("sh", "-c", script("mps_check.sh").decode())
        return done.returncode, done.stdout.strip()

    def ad(self) -> dict[str, str]:
        """Return the attributes that the slot publishes."""
        lines = [
            line.partition(" = ") for line in self.mps_sh("watch")[1].splitlines() if line != "-"
        ]
        return {name: value.strip('"') for name, _, value in lines}

    def kill_daemon(self) -> None:
        pid = int((self.pipes / "nvidia-cuda-mps-control.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), what="the daemon has gone")


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def drone_in(directory: Path, programs: Path) -> Drone:
    for each in ("condor/mps/0", "condor/mps/jobs", "condor/execute", "log/mps-0"):
        (directory / each).mkdir(parents=True)
    (directory / "condor/mps/gpus").write_text(f"0 {GPU} {UUID} {LIMIT_MIB}\n")
    for name in ("mps.sh", "mps_job.py", "job_wrapper.sh"):
        (directory / "condor" / name).write_bytes(script(name))
    (directory / "condor/gpu_wrapper.sh").write_bytes(script("job_wrapper.sh"))
    (directory / "condor/guard").write_text("guard_jobs=no\n")
    account().give(directory)
    return Drone(directory, programs)


@pytest.fixture
def lab() -> Iterator[Path]:
    with lab_directory("mps") as directory:
        yield directory
        for file in directory.rglob("nvidia-cuda-mps-control.pid"):
            for pid in (
                file.read_text(),
                *(each.read_text() for each in file.parent.glob("server")),
            ):
                if pid.strip().isdecimal() and alive(int(pid)):
                    os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def real(lab: Path) -> Drone:
    """A drone on whose host NVIDIA's own programs are."""
    return drone_in(lab / "d", labs_mps.real_control())


@pytest.fixture
def drone(lab: Path) -> Drone:
    """A drone on whose host the stand-in is."""
    (lab / "bin").mkdir()
    programs = labs_mps.stand_in(lab / "bin")
    account().give(programs)
    return drone_in(lab / "d", programs)


SET = f"set_default_device_pinned_mem_limit 0 {LIMIT_MIB}M"


# -------------------------------------------------------------------------------------------
# NVIDIA's control daemon


@pytest.mark.parametrize(
    ("said", "reads"),
    [
        ([], ""),
        (["banana"], ""),
        (["set_pinned_memory 0 5067M"], ""),
        ([SET, "set_default_device_pinned_mem_limit 0 banana"], ""),
        (["set_default_device_pinned_mem_limit 99 5067M"], ""),
        ([f"set_default_device_pinned_mem_limit {UUID} 5067M"], ""),
        (["set_default_device_pinned_mem_limit 0 8G"], "8G"),
    ],
    ids=[
        "none",
        "banana",
        "unknown-command",
        "limit-banana",
        "device-99",
        "uuid-for-index",
        "another-limit",
    ],
)
def test_a_setting_that_the_daemon_did_not_take_is_refused(
    real: Drone, said: list[str], reads: str
) -> None:
    """The program's exit status is 0 each time."""
    real.start_daemon()
    real.tell(*said)
    why = f"{GPU}: the limit of memory of the MPS control daemon reads '{reads}' instead of 5067M"
    assert real.check() == (1, why)
    assert real.ad()["DroneMpsReady"] == "False"
    real.tell(SET)
    assert real.check() == (3, f"{GPU}: no MPS server lives"), "the limit stands"


def test_a_daemon_that_was_killed_leaves_a_stale_socket_and_one_started_again_has_no_limit(
    real: Drone,
) -> None:
    real.start_daemon()
    real.tell(SET)
    assert real.check()[0] == 3
    real.kill_daemon()
    assert (real.pipes / "control").is_socket()
    assert real.check() == (1, f"{GPU}: the MPS control daemon has gone")
    assert real.ad() == {
        "DroneMpsReady": "False",
        "DroneMpsWhy": f"{GPU}: the MPS control daemon has gone",
        "DroneFaults": "",
    }
    real.start_daemon()
    assert "reads '' instead of 5067M" in real.check()[1]
    assert real.ad()["DroneMpsReady"] == "False"


def test_a_stale_socket_whose_pid_is_another_process_is_refused(real: Drone) -> None:
    real.start_daemon()
    real.kill_daemon()
    (real.pipes / "nvidia-cuda-mps-control.pid").write_text("1" if os.geteuid() else "")
    code, why = real.check()
    assert code == 1 and ("belongs to uid 0" in why or "there is no MPS control daemon" in why), why
    sleeper = subprocess.Popen(["sleep", "60"], **account().run)
    (real.pipes / "nvidia-cuda-mps-control.pid").write_text(str(sleeper.pid))
    code, why = real.check()
    sleeper.kill()
    sleeper.wait()
    assert (code, why) == (
        1,
        f"{GPU}: the MPS control daemon does not answer: Cannot find MPS control daemon process",
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a daemon of another account")
def test_a_daemon_of_another_account_is_refused(real: Drone) -> None:
    real.start_daemon(as_root=True)
    real.tell(SET)
    why = f"{GPU}: the MPS control daemon belongs to uid 0, not to {account().uid}"
    assert real.check() == (1, why)
    assert real.ad()["DroneMpsWhy"] == why
    pid = int((real.pipes / "nvidia-cuda-mps-control.pid").read_text())
    os.kill(pid, signal.SIGKILL)


# -------------------------------------------------------------------------------------------------
# the whole drone


SHARED = {"DRONE_SHARING": "mps", "DRONE_SHARES": "2"}


def whole_drone(lab: Path, programs: Path, name: str = "d") -> tuple[int, dict[str, str]]:
    """Exit status and outcome of a drone that HTCondor would not serve for long."""
    return bare_drone(lab, programs, name, **SHARED).wait()


def test_without_a_gpu_the_real_server_dies_and_the_drone_says_so(lab: Path) -> None:
    code, outcome = whole_drone(lab, labs_mps.real_control())
    assert (code, outcome["reason"]) == (74, "no-mps")
    assert re.fullmatch(
        rf"{GPU}: no MPS server lives: Server \d+ exited with status 1", outcome["why"]
    ), outcome
    assert (
        "set_default_device_pinned_mem_limit 0 20480M"
        in (lab / "d/log/mps-0/control.log").read_text()
    )


@pytest.mark.parametrize("length", [87, 88, 93])
def test_a_path_that_is_too_long_for_the_sockets_is_refused(lab: Path, length: int) -> None:
    name = "d" * (length - len(f"{lab}//condor/mps/0"))
    code, outcome = whole_drone(lab, labs_mps.real_control(), name)
    assert (code, outcome["reason"]) == (74, "no-mps")
    too_long = f"too long for the sockets of MPS: {length} characters, at most 87" in outcome["why"]
    assert too_long == (length > 87), outcome["why"]
    if length == 87:
        assert "no MPS server lives" in outcome["why"], "the real daemon has started"


def test_a_drone_starts_htcondor_once_a_server_lives_with_its_limit(lab: Path) -> None:
    (lab / "bin").mkdir()
    programs = labs_mps.stand_in(lab / "bin")
    account().give(programs)
    _, outcome = whole_drone(lab, programs)
    assert outcome["reason"] == "startd-died", outcome
    assert (programs / "said").read_text().splitlines()[:3] == [
        f"start {UUID} {lab}/d/log/mps-0",
        "set_default_device_pinned_mem_limit 0 20480M",
        f"start_server -uid {account().uid}",
    ]
    assert (programs / "said").read_text().splitlines()[-1] == "quit -t 1"


# -------------------------------------------------------------------------------- a server that
# lives, and faults


@pytest.fixture
def serving(drone: Drone) -> Drone:
    drone.start_daemon()
    drone.tell(SET, f"start_server -uid {account().uid}")
    assert drone.check() == (0, "each GPU has an MPS server with its limit of memory")
    assert drone.ad() == {"DroneMpsReady": "True", "DroneMpsWhy": "", "DroneFaults": ""}
    return drone


def test_a_server_without_the_limit_is_refused(drone: Drone) -> None:
    """Limits set by default hold for the next server, not for the one that is there."""
    drone.start_daemon()
    drone.tell(f"start_server -uid {account().uid}", SET)
    assert drone.check() == (3, f"{GPU}: the log of the MPS server has no limit of memory")
    assert drone.ad()["DroneMpsReady"] == "False"


def test_a_server_with_another_limit_is_refused(drone: Drone) -> None:
    drone.start_daemon()
    drone.tell(
        "set_default_device_pinned_mem_limit 0 5066M", f"start_server -uid {account().uid}", SET
    )
    assert drone.check() == (
        1,
        f"{GPU}: the MPS server has a limit of memory of 5066 MiB instead of 5067 MiB",
    )


def test_a_server_that_dies_ends_acceptance_until_the_next_one_lives(serving: Drone) -> None:
    os.kill(int((serving.pipes / "server").read_text()), signal.SIGKILL)
    until(lambda: "no MPS server lives" in serving.check()[1], what="it has gone")
    assert serving.ad()["DroneMpsReady"] == "False"
    until(lambda: serving.ad()["DroneMpsReady"] == "True", what="the next server")
    assert serving.check()[0] == 0


def job_on(drone: Drone, n: int, owner: str, ended: int | None = None) -> None:
    """A job that the wrapper wrote down."""
    (drone.dir / f"condor/execute/dir_{n}").mkdir()
    line = f"0 schedd#{n}.0#17 {owner}" + (f" {ended}" if ended else "")
    (drone.dir / f"condor/mps/jobs/dir_{n}").write_text(f"{line}\n")


def log(drone: Drone, text: str, at: datetime = datetime(2026, 4, 28, 18, 21, 41)) -> None:
    with (drone.dir / "log/mps-0/server.log").open("a") as file:
        file.write(
            f"[{at:%Y-%m-%d %H:%M:%S}.986 Server {(drone.pipes / 'server').read_text().strip()}] {text}\n"
        )


def faults(drone: Drone) -> list[list[str]]:
    return [record.split("|")[1:] for record in drone.ad()["DroneFaults"].split()]


def test_a_fault_ends_acceptance_until_the_server_takes_clients_again_and_is_recorded_once(
    serving: Drone,
) -> None:
    """The line of the log that names a cause can be written by any job of the drone."""
    for n, owner, ended in ((1, "ann", None), (2, "bob", None), (3, "cat", int(time.time()) - 100)):
        job_on(serving, n, owner, ended)
    scratch = {"_CONDOR_SCRATCH_DIR": str(serving.dir / "condor/execute/dir_2")}
    client = subprocess.Popen(["sleep", "600"], env=scratch, **account().run)
    (serving.pipes / "clients").write_text(f"{client.pid}\n")
    log(serving, f"Client {{PID: {client.pid}, Context ID: 0}} connected")
    assert serving.ad()["DroneFaults"] == ""
    client.kill()
    client.wait()

    (serving.pipes / "status").write_text("FAULT\n")
    log(
        serving,
        f"Client {{PID: {client.pid}, Context ID: 0}} triggered a fatal GPU memory fault on device 0",
    )
    log(serving, "Status of the server is FAULT")
    ad = serving.ad()
    assert (ad["DroneMpsReady"], "recovers from the fault" in ad["DroneMpsWhy"]) == ("False", True)
    assert serving.check()[0] == 0, "the drone goes on"
    assert faults(serving) == [
        ["schedd#1.0#17", "ann", "collateral"],
        ["schedd#2.0#17", "bob", "collateral"],
    ]
    assert faults(serving) == faults(serving), "recorded once"
    (serving.pipes / "status").write_text("ACTIVE\n")
    log(serving, "Recreated the server context on device 0 after a fault")
    assert serving.ad()["DroneMpsReady"] == "True"
    assert len(faults(serving)) == 2


def test_a_fault_that_the_log_has_before_the_server_says_so_is_recorded_once(
    serving: Drone,
) -> None:
    for n, owner in enumerate(("ann", "bob")):
        job_on(serving, n, owner)
    log(serving, "Client {PID: 1, Context ID: 0} triggered a fatal GPU memory fault on device 0")
    assert len(faults(serving)) == 2
    for status in ("FAULT", "", "FAULT", "ACTIVE"):  # and once it cannot be asked
        (serving.pipes / "status").write_text(status)
        log(serving, "Client {PID: 2, Context ID: 0} connected")
        assert len(faults(serving)) == 2, status


@pytest.mark.parametrize(
    ("jobs", "how"),
    [(("ann", "bob"), ["collateral", "collateral"]), (("ann",), ["faulted"])],
    ids=["two", "one"],
)
def test_of_a_fault_without_a_name_all_jobs_of_the_gpu_are_victims(
    serving: Drone, jobs: tuple[str, ...], how: list[str]
) -> None:
    for n, owner in enumerate(jobs):
        job_on(serving, n, owner)
    (serving.dir / "condor/mps/jobs/dir_9").write_text("1 schedd#9.0#17 zoe\n")  # on another GPU
    (serving.dir / "condor/execute/dir_9").mkdir()
    (serving.pipes / "status").write_text("FAULT\n")
    log(serving, "Server encountered a fatal exception")
    assert [record[1:] for record in faults(serving)] == [
        list(each) for each in zip(jobs, how, strict=True)
    ]


def test_a_job_that_ended_before_the_fault_is_no_victim(serving: Drone) -> None:
    now = datetime.now()  # in local time, as the log
    for n, owner, ended in (
        (1, "ann", None),
        (2, "bob", None),
        (3, "cat", int(now.timestamp()) - 1),
    ):
        job_on(serving, n, owner, ended)
    for text in (
        "Client {PID: 4711, Context: 1} encountered a fatal GPU error.",
        "Server is handling a fatal GPU error.",
        "Client {PID: 4711, Context ID: 1} on device 0 to be torn down",
    ):
        log(serving, text, now)
    assert faults(serving) == [
        ["schedd#1.0#17", "ann", "collateral"],
        ["schedd#2.0#17", "bob", "collateral"],
    ]


def test_a_server_that_does_not_say_its_state_is_not_accepted(serving: Drone) -> None:
    """As with programs of branch 550 beside a driver of branch 580."""
    (serving.pipes / "status").write_text("")
    code, why = serving.check()
    assert (code, "its programs need the version of the driver" in why) == (1, True)


def test_the_latest_ten_faults_are_published(serving: Drone) -> None:
    (serving.dir / "condor/mps/faults").write_text(
        "".join(f"17|s#{n}.0#1|ann|faulted\n" for n in range(14))
    )
    log(serving, "Client {PID: 1, Context ID: 0} connected")  # it looks only where there is news
    assert [record[0] for record in faults(serving)] == [f"s#{n}.0#1" for n in range(4, 14)]


# ------------------------------------------------------------------------------------------------------
# the wrapper

Wrapped = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def wrapped(serving: Drone) -> Wrapped:
    """Start a job as the starter does: the wrapper with the job's command."""
    d = serving.dir / "condor"
    scratch = d / "execute/dir_7"
    scratch.mkdir()
    (scratch / ".job.ad").write_text(
        'GlobalJobId = "schedd#7.0#17"\nOwner = "eve"\nJobMaxVacateTime = 5\n'
    )
    (scratch / ".machine.ad").write_text(f'AssignedGPUs = "{GPU}"\n')
    (d / "mps/wrapper").write_text(
        f"20 {serving.programs}/nvidia-cuda-mps-control /usr/bin/python3\n"
    )
    account().give(scratch)

    def start(*command: str, **more: str | None) -> subprocess.Popen[str]:
        env: dict[str, str | None] = {
            "PATH": "/usr/bin:/bin",
            "CUDA_VISIBLE_DEVICES": GPU,
            "_CONDOR_SCRATCH_DIR": str(scratch),
            "_CONDOR_JOB_AD": str(scratch / ".job.ad"),
            "_CONDOR_MACHINE_AD": str(scratch / ".machine.ad"),
            **more,
        }
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            ["/bin/sh", str(d / "job_wrapper.sh"), *command],
            env={name: value for name, value in env.items() if value is not None},
            cwd=scratch,
            **pipes,
            **account().run,
        )

    return start


@pytest.mark.parametrize("status", [0, 1, 127, 130, 137, 143, 255])
def test_a_job_exits_with_its_own_status(wrapped: Wrapped, status: int) -> None:
    """Also one of 128 and more, which a shell takes for a signal."""
    job = wrapped("/bin/sh", "-c", f'cat; echo "$1" >&2; exit {status}', "sh", "two  words")
    assert job.communicate("input\n", timeout=60) == ("input\n", "two  words\n")
    assert job.returncode == status


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT, signal.SIGPIPE]
)
def test_a_job_ends_by_its_own_signal(wrapped: Wrapped, number: signal.Signals) -> None:
    job = wrapped("/bin/sh", "-c", f"kill -{number.value} $$; sleep 60")
    job.communicate(timeout=60)
    assert job.returncode == -number


def test_a_job_starts_whatever_its_ad_contains_and_ends_as_it_does_without_its_line(
    wrapped: Wrapped, serving: Drone
) -> None:
    ad = serving.dir / "condor/execute/dir_7/.job.ad"
    ad.write_bytes(ad.read_bytes() + 'Note = "caf\u00e9"\n'.encode("latin-1"))
    job = wrapped("/bin/sh", "-c", "rm -r ../../mps/jobs; echo started; exit 3")
    assert job.communicate(timeout=60) == ("started\n", "")
    assert job.returncode == 3


@pytest.mark.parametrize(
    "env",
    [
        {"PATH": None, "LD_LIBRARY_PATH": None, "LD_PRELOAD": None},
        {"PATH": "/nonexistent", "LD_LIBRARY_PATH": "", "LD_PRELOAD": ""},
        {"PATH": "/a b:/c", "LD_LIBRARY_PATH": '/it\'s "$HOME"', "LD_PRELOAD": None},
    ],
    ids=["unset", "empty", "quoted"],
)
@pytest.mark.parametrize("python", [True, False])
def test_the_limit_of_a_job_holds_whatever_its_path_and_these_are_the_jobs_own(
    wrapped: Wrapped, serving: Drone, env: dict[str, str | None], python: bool
) -> None:
    """Without coreutils on its PATH it was run without a limit."""
    record, program = serving.dir / "condor/libraries", serving.dir / "condor/python3"
    program.write_text(
        f'#!/bin/sh\necho "${{LD_LIBRARY_PATH-none}}" >>{record}\nexec /usr/bin/python3 "$@"\n'
    )
    program.chmod(0o755)
    control = serving.programs / "nvidia-cuda-mps-control"
    (serving.dir / "condor/mps/wrapper").write_text(f"20 {control} {program if python else ''}\n")
    said = wrapped("/usr/bin/env", "-0", **env).communicate(timeout=60)[0]
    found = dict(each.split("=", 1) for each in said.split("\0") if each)
    assert {name: found.get(name) for name in env} == env
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={LIMIT_MIB}M"
    if python:
        assert set(record.read_text().split()) == {"none"}, "the job's libraries are not for Python"


def test_a_command_that_cannot_be_run_ends_with_127(wrapped: Wrapped) -> None:
    job = wrapped("/nonexistent/job")
    assert "/nonexistent/job: not found" in job.communicate(timeout=60)[1]
    assert job.returncode == 127


def test_without_python_a_job_runs_all_the_same(wrapped: Wrapped, serving: Drone) -> None:
    (serving.dir / "condor/mps/wrapper").write_text(
        f"20 {serving.programs}/nvidia-cuda-mps-control \n"
    )
    job = wrapped("/bin/sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY; exit 143")
    assert job.communicate(timeout=60)[0] == f"{serving.pipes}\n"
    assert job.returncode == 143


def test_a_job_gets_the_daemon_of_its_gpu_and_its_limit(wrapped: Wrapped, serving: Drone) -> None:
    said = wrapped("/usr/bin/env").communicate(timeout=60)[0].splitlines()
    limit = f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={LIMIT_MIB}M"
    assert {
        f"CUDA_MPS_PIPE_DIRECTORY={serving.pipes}",
        limit,
        f"CUDA_VISIBLE_DEVICES={UUID}",
    } <= set(said)
    number, job, owner, ended = (serving.dir / "condor/mps/jobs/dir_7").read_text().split()
    assert (number, job, owner) == ("0", "schedd#7.0#17", "eve")
    assert abs(int(ended) - time.time()) < 600


def test_a_job_on_a_gpu_without_mps_is_not_run(wrapped: Wrapped, serving: Drone, lab: Path) -> None:
    (serving.dir / "condor/execute/dir_7/.machine.ad").write_text('AssignedGPUs = "GPU-b1223334"\n')
    error = serving.dir / "condor/execute/error"
    job = wrapped("/bin/sh", "-c", f"touch {lab}/ran", _CONDOR_WRAPPER_ERROR_FILE=str(error))
    job.communicate(timeout=60)
    assert (job.returncode, error.read_text()) == (
        1,
        "there is no MPS for the GPU 'GPU-b1223334'\n",
    )
    assert not (lab / "ran").exists()
    (serving.dir / "condor/execute/dir_7/.machine.ad").write_text("Cpus = 1\n")
    job = wrapped("/bin/sh", "-c", f"touch {lab}/ran", _CONDOR_WRAPPER_ERROR_FILE=str(error))
    job.communicate(timeout=60)
    assert (job.returncode, error.read_text()) == (1, "there is no MPS for the GPU ''\n")
    assert not (lab / "ran").exists()


CLIENT = 'echo $$ >>"$CUDA_MPS_PIPE_DIRECTORY/clients"; echo ready; '
"""A job that is a client of MPS."""


def client(job: subprocess.Popen[str]) -> int:
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    return next(
        int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    )


def said(drone: Drone) -> list[str]:
    return [
        line
        for line in (drone.programs / "said").read_text().splitlines()
        if line.startswith("terminate")
    ]


def test_the_clients_of_a_job_are_ended_before_it_dies_of_the_signal(
    wrapped: Wrapped, serving: Drone
) -> None:
    server = (serving.pipes / "server").read_text().strip()
    stranger = subprocess.Popen(
        ["sleep", "600"], env={"_CONDOR_SCRATCH_DIR": "/other"}, **account().run
    )
    job = wrapped("/bin/sh", "-c", f"{CLIENT} while :; do sleep 0.1; done")
    pid = client(job)
    with (serving.pipes / "clients").open("a") as file:
        file.write(f"{stranger.pid}\n")
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    stranger.kill()
    stranger.wait()
    assert job.returncode == -signal.SIGTERM
    assert said(serving) == [f"terminate_client {server} {pid}"], (
        "its own client, and not its neighbour's"
    )


def test_a_client_is_of_the_job_that_it_is_below_whatever_its_environment_names(
    wrapped: Wrapped, serving: Drone
) -> None:
    """Its own child left its parents and has no environment; a stranger names the job's directory."""
    scratch = {"_CONDOR_SCRATCH_DIR": str(serving.dir / "condor/execute/dir_7")}
    stranger = subprocess.Popen(["sleep", "600"], env=scratch, **account().run)
    leaves = "setsid sh -c 'env -i sleep 600 & echo $! >>\"$0\"' $CUDA_MPS_PIPE_DIRECTORY/clients"
    job = wrapped("/bin/sh", "-c", f"{leaves}; echo ready; exec sleep 600")
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    [own] = (serving.pipes / "clients").read_text().split()
    try:
        with (serving.pipes / "clients").open("a") as file:
            file.write(f"{stranger.pid}\n")
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=60)
    finally:
        for pid in (stranger.pid, int(own)):
            os.kill(pid, signal.SIGKILL)
        stranger.wait()
        job.communicate(timeout=60)
    server = (serving.pipes / "server").read_text().strip()
    assert said(serving) == [f"terminate_client {server} {own}"]


def test_a_job_that_catches_the_signal_may_save_before_its_clients_are_ended(
    wrapped: Wrapped, serving: Drone
) -> None:
    saves = f"trap 'cp {serving.programs}/said \"$_CONDOR_SCRATCH_DIR/then\"; exit 3' TERM; "
    job = wrapped("/bin/sh", "-c", f"{saves}{CLIENT} while :; do sleep 0.1; done")
    client(job)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == 3
    assert "terminate" not in (serving.dir / "condor/execute/dir_7/then").read_text()


def test_the_clients_of_a_job_that_does_not_go_are_ended_before_it_is_killed(
    wrapped: Wrapped, serving: Drone
) -> None:
    """Its job_max_vacate_time is 5 s, 3 s of which are for ending its clients."""
    job = wrapped("/bin/sh", "-c", f"trap '' TERM; {CLIENT} while :; do sleep 0.1; done")
    pid = client(job)
    job.send_signal(signal.SIGTERM)
    until(lambda: said(serving), what="its client is ended")
    assert said(serving) == [
        f"terminate_client {(serving.pipes / 'server').read_text().strip()} {pid}"
    ]
    assert job.poll() is None, "it is the starter that kills it"
    os.kill(pid, signal.SIGKILL)
    job.communicate(timeout=60)
    assert job.returncode == -signal.SIGKILL


def test_ending_clients_takes_no_longer_than_its_limit(wrapped: Wrapped, serving: Drone) -> None:
    hangs = serving.programs / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    (serving.dir / "condor/mps/wrapper").write_text(f"20 {hangs} /usr/bin/python3\n")
    job = wrapped("/bin/sh", "-c", "echo ready; while :; do sleep 0.1; done")
    client(job)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == -signal.SIGTERM


def test_the_drone_ends_all_clients_before_it_kills(serving: Drone) -> None:
    client = subprocess.Popen(["sleep", "600"], **account().run)
    (serving.pipes / "clients").write_text(f"{client.pid}\n")
    assert serving.mps_sh("end") == (0, "")
    client.kill()
    client.wait()
    assert said(serving) == [
        f"terminate_client {(serving.pipes / 'server').read_text().strip()} {client.pid}"
    ]


def test_the_clients_of_all_gpus_are_ended_at_one_time(drone: Drone) -> None:
    """One GPU after the other would take longer than the grace of a large drone."""
    (drone.dir / "condor/mps/gpus").write_text(
        "".join(f"{n} GPU-{n} GPU-{n} 5067\n" for n in range(3))
    )
    (drone.programs / "nvidia-cuda-mps-control").write_text(
        """#!/bin/sh
        touch "$CUDA_MPS_PIPE_DIRECTORY.asked"
        until [ -e "${CUDA_MPS_PIPE_DIRECTORY%?}0.asked" ] && [ -e "${CUDA_MPS_PIPE_DIRECTORY%?}2.asked" ]; do
            sleep 0.1
        done
        touch "$CUDA_MPS_PIPE_DIRECTORY.answered"
        """
    )
    assert drone.mps_sh("end") == (0, "")
    assert len(list((drone.dir / "condor/mps").glob("?.answered"))) == 3
