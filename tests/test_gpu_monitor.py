"""The drone's monitor of its GPUs: the accounting, the processes of jobs, the drivers, and its reports."""

from __future__ import annotations

import ast
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from provisioner.drone import gpu_monitor, script
from provisioner.drone.gpu_monitor import (
    DeviceReading,
    DeviceSample,
    GpuDriver,
    GpuMonitor,
    GpuProcess,
    SlotJob,
    SlotUsage,
    divide,
    jobs_in,
)
from tests.labs.gpu import FakeGpus

A, B, C = (1, 1), (1, 2), (1, 3)

fractions = st.floats(0, 1)
processes = st.lists(
    st.builds(
        GpuProcess, st.sampled_from([A, B, C, None]), st.none() | fractions, st.floats(0, 50_000)
    ),
    max_size=8,
)
readings = st.builds(
    DeviceReading,
    seconds=st.floats(0.01, 10),
    busy=st.none() | st.floats(-0.5, 2),
    joules=st.none() | st.floats(0, 5000),
    used_mib=st.floats(0, 40_536),
    total_mib=st.just(40_536.0),
    processes=processes,
)


@given(readings, st.sampled_from([[A], [A, B], [A, B, C]]), st.booleans())
def test_the_sum_over_the_slots_never_exceeds_the_device(
    reading: DeviceReading, slots: list[tuple[int, int]], own: bool
) -> None:
    used = divide(reading, slots, own)
    assert set(used) == set(slots)
    seconds = [each.gpu_seconds for each in used.values()]
    assert (None in seconds) == (reading.busy is None)
    busy = min(max(reading.busy or 0.0, 0.0), 1.0)
    little = 1e-6
    assert sum(each or 0.0 for each in seconds) <= busy * reading.seconds + little
    assert sum(each.vram_mib for each in used.values()) <= reading.total_mib + little
    assert (
        sum(each.joules or 0.0 for each in used.values())
        <= (reading.joules or 0.0) * (1 + little) + little
    )
    assert all(value is None or value >= 0 for each in used.values() for value in each)


def reading(*processes: GpuProcess, busy: float | None = 0.6) -> DeviceReading:
    return DeviceReading(2.0, busy, 100.0, 9000.0, 40536.0, processes)


def test_each_slot_is_charged_for_its_own_processes() -> None:
    found = divide(
        reading(GpuProcess(A, 0.2, 3000), GpuProcess(B, 0.3, 4000), GpuProcess(B, 0.1, 1000)),
        [A, B],
        False,
    )
    assert found[A] == pytest.approx(SlotUsage(0.4, 3000, 100 / 3))
    assert found[B] == pytest.approx(SlotUsage(0.8, 5000, 200 / 3))
    # kernels that overlap under MPS: 120 % of processes on a GPU that was busy for 60 % of the time
    found = divide(reading(GpuProcess(A, 0.4, 1), GpuProcess(B, 0.8, 1)), [A, B], False)
    assert found[A][0] == pytest.approx(0.4) and found[B][0] == pytest.approx(0.8)
    # a process of another pays for itself
    found = divide(reading(GpuProcess(A, 0.2, 1), GpuProcess(None, 0.4, 1)), [A, B], False)
    assert found[A][0] == pytest.approx(0.4) and found[B][0] == 0


def test_a_driver_without_figures_of_processes_gives_equal_parts_to_those_that_have_some() -> None:
    found = divide(reading(GpuProcess(A, None, 3000), GpuProcess(A, None, 1)), [A, B], False)
    assert (found[A][0], found[B][0]) == (1.2, 0)
    found = divide(reading(), [A, B], False)
    assert (found[A][0], found[B][0]) == (0.6, 0.6)
    found = divide(reading(GpuProcess(A, None, 3000), GpuProcess(None, None, 1)), [A, B], False)
    assert (found[A][0], found[B][0]) == (0.6, 0)


def test_an_exclusive_gpu_is_charged_to_its_only_slot() -> None:
    found = divide(reading(GpuProcess(None, 0.1, 3000), GpuProcess(A, None, 1000)), [A], True)
    assert found == {A: SlotUsage(1.2, 4000, 100.0)}
    assert divide(reading(), [A], True) == {A: SlotUsage(1.2, 9000, 100.0)}, (
        "no process is seen: the used memory"
    )


def test_an_idle_gpu_costs_its_jobs_equal_energy() -> None:
    found = divide(reading(GpuProcess(A, 0.0, 1), busy=0.0), [A, B], False)
    assert (found[A].joules, found[B].joules) == (50, 50)


def test_vram_counts_once_it_has_been_held_for_a_while() -> None:
    job = SlotJob(A, ["GPU-1"])
    held = [
        job.sustained(100 + 2 * n, mib)
        for n, mib in enumerate([9000, 12000, 11000, 12000, 500, 12000])
    ]
    assert held == [(0, 100), (0, 100), (9000, 100), (11000, 102), (500, 104), (500, 106)]


# -----------------------------------------------------------------------------------------------------
# the drone's jobs


@contextmanager
def starter(
    execute: Path, program: str, folder: str = "scratch", slot: int = 1, argv: tuple[str, ...] = ()
) -> Iterator[tuple[int, int]]:
    """A process in the place of a starter, and a child of it that runs ``program``: both process ids."""
    command = 'read -r go; env -i X=1 sh -c "$0" & echo $!; wait'
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(
        ["sh", "-c", command, program, *argv], start_new_session=True, **pipes
    )
    try:
        directory = execute / f"dir_{process.pid}" / folder
        directory.mkdir(parents=True)
        ad = f'AssignedGPUs = "GPU-a0a1a2a3"\nCpus = 1\nDSlotId = {slot}\nSlotID = 1\n'
        (directory / ".machine.ad").write_text(ad)
        assert process.stdin and process.stdout
        process.stdin.write("go\n")
        process.stdin.flush()
        yield process.pid, int(process.stdout.readline())
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@dataclass
class OneGpu(GpuDriver):
    """A driver whose GPU has the processes in ``vram``: MiB by process id."""

    vram: dict[int, float]

    def read(self, device: str, since: float, now: float) -> DeviceSample | None:
        processes = {pid: (0.1, mib) for pid, mib in self.vram.items()}
        return DeviceSample(now - since, 0.9, 500.0, sum(self.vram.values()), 40536.0, processes)


def charged(monitor: GpuMonitor) -> dict[tuple[int, int], float | None]:
    """Return the VRAM that each slot is charged with now."""
    found = monitor.usage(100.0, 102.0)
    return {slot: used[1].vram_mib for slot, used in found.items() if used is not None}


def left_behind(program: str, **env: str) -> int:
    """Return the process id of a program that has left its parents."""
    command = 'sh -c "$0" >/dev/null & echo $!'
    done = subprocess.run(
        ["setsid", "sh", "-c", command, program], env=env, stdout=subprocess.PIPE, check=True
    )
    pid = int(done.stdout)
    while b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        time.sleep(0.01)
    return pid


@pytest.mark.parametrize("folder", ["scratch", "."])
def test_a_job_that_clears_its_environment_is_found_by_its_starter(
    tmp_path: Path, folder: str
) -> None:
    """HTCondor 25 has the machine ad in ``scratch``, 23 beside it."""
    with starter(tmp_path, "sleep 60; true", folder) as (pid, child):
        jobs = jobs_in(str(tmp_path), {})
        assert [(job.slot, job.devices) for job in jobs.values()] == [(A, ["GPU-a0a1a2a3"])]
        assert charged(
            GpuMonitor(OneGpu({child: 7.0, os.getpid(): 1.0}), str(tmp_path), False)
        ) == {A: 7.0}
        assert jobs_in(str(tmp_path), jobs)[pid] is jobs[pid], "it keeps what it has used"
    assert jobs_in(str(tmp_path), jobs) == {}


def test_a_process_is_not_charged_to_the_neighbour_that_its_environment_names(
    tmp_path: Path,
) -> None:
    with (
        starter(tmp_path, "sleep 60; true") as (_, one),
        starter(tmp_path, "sleep 60; true", slot=2) as (other, two),
    ):
        orphan = left_behind("exec sleep 60", _CONDOR_SCRATCH_DIR=f"{tmp_path}/dir_{other}/scratch")
        try:
            monitor = GpuMonitor(
                OneGpu({one: 10.0, two: 20.0, orphan: 38_000.0}), str(tmp_path), False
            )
            assert charged(monitor) == {A: 10.0, B: 20.0}
            assert sum(monitor.strays.values()) == 38_000, "nobody's, and a reason to take no job"
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_what_jobs_leave_behind_counts_until_it_ends_and_nothing_else_does(tmp_path: Path) -> None:
    check = subprocess.Popen(["sleep", "60"])  # below the startd, as the drone's checks are
    orphan = left_behind("exec sleep 60")
    try:
        gpu = OneGpu({orphan: 400.0, check.pid: 300.0})
        monitor = GpuMonitor(gpu, str(tmp_path), False)
        monitor.usage(100.0, 102.0)
        assert sum(monitor.strays.values()) == 0, "no job of the drone has had this GPU"
        with starter(tmp_path, "sleep 60; true") as (_, child):
            gpu.vram[child] = 1000.0
            assert charged(monitor) == {A: 1000.0}
            assert sum(monitor.strays.values()) == 400
        del gpu.vram[child]
        for _ in range(3):
            assert charged(monitor) == {}
            assert sum(monitor.strays.values()) == 400, "its job has ended"
    finally:
        os.kill(orphan, signal.SIGKILL)
        check.kill()
        check.wait()
    del gpu.vram[orphan]
    assert charged(monitor) == {}
    assert sum(monitor.strays.values()) == 0


def test_a_process_that_leaves_its_parents_stays_with_its_job_and_ends_with_it(
    tmp_path: Path,
) -> None:
    told, go = tmp_path / "told", tmp_path / "go"
    leave = (
        f'(while [ ! -e {go} ]; do sleep 0.01; done) & echo "$!" >{told}.new; mv {told}.new {told}'
    )
    program = (
        f"setsid sh -c '{leave}; while [ ! -e {go}.first ]; do sleep 0.01; done' & sleep 60; true"
    )
    with starter(tmp_path, "sleep 60; true", slot=2):
        with starter(tmp_path, program):
            while not told.exists():
                time.sleep(0.01)
            orphan = int(told.read_text())
            monitor = GpuMonitor(OneGpu({orphan: 3000.0}), str(tmp_path), False)
            assert charged(monitor) == {A: 3000.0, B: 0.0}
            before = Path(f"/proc/{orphan}/stat").read_text().split()[3]
            Path(f"{go}.first").touch()
            while Path(f"/proc/{orphan}/stat").read_text().split()[3] == before:
                time.sleep(0.01)
            assert charged(monitor) == {A: 3000.0, B: 0.0}, "it has left its parents"
        with starter(tmp_path, "sleep 60; true"):
            assert charged(monitor) == {A: 0.0, B: 0.0}, (
                "the next job of the slot has nothing to do with it"
            )
        go.touch()


def test_a_job_cannot_take_the_slot_of_its_neighbour(tmp_path: Path) -> None:
    """Both can be written by the job: its own machine ad, and a directory that names a process of it as a starter."""
    line = ("-f", "-local-name", "slot_type_1", "-a")
    with (
        starter(tmp_path, "sleep 60; true", slot=2, argv=(*line, "slot1_1", "node7")) as (_, one),
        starter(tmp_path, "sleep 60; true", slot=2, argv=(*line, "slot1_2", "node7")) as (_, two),
    ):
        for pid in (one, left_behind("exec sleep 60")):
            (tmp_path / f"dir_{pid}/scratch").mkdir(parents=True)
            (tmp_path / f"dir_{pid}/scratch/.machine.ad").write_text(
                'AssignedGPUs = "GPU-a0a1a2a3"\nDSlotId = 2\nSlotID = 1\n'
            )
        try:
            monitor = GpuMonitor(
                OneGpu({one: 10.0, two: 20.0, pid: 38_000.0}), str(tmp_path), False
            )
            assert charged(monitor) == {A: 10.0, B: 20.0}
        finally:
            os.kill(pid, signal.SIGKILL)


def test_a_starter_whose_command_line_names_no_slot_gets_none_that_another_has(
    tmp_path: Path,
) -> None:
    named = ("-a", "slot1_2", "node7")
    with (
        starter(tmp_path, "sleep 60; true", slot=2) as (_, one),
        starter(tmp_path, "sleep 60; true", argv=named, slot=2) as (_, two),
    ):
        assert charged(GpuMonitor(OneGpu({one: 10.0, two: 20.0}), str(tmp_path), False)) == {
            B: 20.0
        }


def test_a_machine_ad_that_the_job_replaced_does_not_stop_the_monitor(tmp_path: Path) -> None:
    with starter(tmp_path, "sleep 60; true") as (pid, _):
        ad = tmp_path / f"dir_{pid}/scratch/.machine.ad"
        for text in (
            "SlotID = abc\nDSlotId = 1\n",
            "SlotID = 1\nDSlotId = \u00b2\n",
            f"SlotID = {'1' * 5000}\nDSlotId = x\n",
        ):
            ad.write_text(f'AssignedGPUs = "GPU-a0a1a2a3"\n{text}')
            assert jobs_in(str(tmp_path), {}) == {}
        ad.unlink()
        os.mkfifo(ad)
        assert jobs_in(str(tmp_path), {}) == {}


# --------------------------------------------------------------------------------------------------------------
# drivers


def test_amd_devices_are_read_from_sysfs(tmp_path: Path) -> None:
    for at, unique in enumerate(("6d3ab1c29f001122", "1234567890abcdef")):
        card = tmp_path / f"class/drm/card{at}/device"
        card.mkdir(parents=True)
        files = {
            "gpu_busy_percent": 40 + at,
            "mem_info_vram_used": 3 << 30,
            "mem_info_vram_total": 64 << 30,
            "unique_id": unique,
        }
        for name, text in files.items():
            (card / name).write_text(f"{text}\n")
    amd = gpu_monitor.AmdSysfs(str(tmp_path))
    assert not amd.sees_processes
    assert amd.read("GPU-12345678", 10.0, 12.0) == gpu_monitor.DeviceSample(
        2.0, 0.41, None, 3072, 65536, {}
    )
    digits = b"6d3ab1c29f001122".hex()
    found = amd.read(f"GPU-{digits[:8]}-{digits[8:12]}", 10.0, 12.0)
    assert found is not None and found.busy == 0.4
    assert amd.read("GPU-99999999", 10.0, 12.0) is None
    second = tmp_path / "class/drm/card1/device"
    (second / "gpu_busy_percent").write_text("\n")  # as the driver says while it cannot tell
    assert amd.read("GPU-12345678", 10.0, 12.0) == DeviceSample(2.0, None, None, 3072, 65536, {})
    (second / "mem_info_vram_used").unlink()
    assert amd.read("GPU-12345678", 10.0, 12.0) is None
    with pytest.raises(OSError, match="no GPU in"):
        gpu_monitor.AmdSysfs(str(tmp_path / "none"))


def test_the_energy_of_a_pause_is_charged_to_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without a job is not read."""
    counter = iter([1000, 3000, 900_000, 902_000])

    def answer(_: object, name: str, handle: object, total: Any) -> int:
        total._obj.value = next(counter)
        return 0

    monkeypatch.setattr(gpu_monitor.Nvml, "_call", answer)
    nvml = object.__new__(gpu_monitor.Nvml)
    nvml._energy = {}
    found = [nvml._joules("GPU-1", ctypes.c_void_p(), now) for now in (100.0, 102.0, 600.0, 602.0)]
    assert found == [None, 2.0, None, 2.0]


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    return FakeGpus.build(tmp_path / "gpus", 2)


def environment(gpus: FakeGpus, home: Path, **more: str) -> dict[str, str]:
    return {
        **gpus.env,
        "DRONE_DIR": str(home),
        "DRONE_GPUS": "1",
        "PATH": os.environ["PATH"],
        **more,
    }


def run(gpus: FakeGpus, home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    program = home / "gpu_monitor.py"
    program.write_bytes(script("gpu_monitor.py"))
    how = {
        "env": environment(gpus, home, **more),
        "capture_output": True,
        "text": True,
        "timeout": 60,
    }
    return subprocess.run([sys.executable, "-I", str(program), *words], **how)


def reports(gpus: FakeGpus, home: Path, count: int, **more: str) -> list[dict[str, str]]:
    """The first reports of the monitor."""
    (home / "gpu_monitor.py").write_bytes(script("gpu_monitor.py"))
    command = [sys.executable, "-I", str(home / "gpu_monitor.py"), "strays"]
    process = subprocess.Popen(
        command, env=environment(gpus, home, **more), stdout=subprocess.PIPE, text=True
    )
    found: list[dict[str, str]] = [{}]
    try:
        assert process.stdout
        for line in process.stdout:
            if line == "- Strays\n":
                assert found.pop() == {"DroneStrayVram": "0"}
                found.append({})
            elif line.startswith("- "):
                found[-1]["name"] = line[2:].strip()
                if len(found) == count:
                    return found
                found.append({})
            else:
                name, _, value = line.strip().partition(" = ")
                found[-1][name] = value
        raise AssertionError(f"it ended after {found}")
    finally:
        process.kill()
        process.wait()


def sample(gpus: FakeGpus, home: Path) -> str:
    """Return what NVML's reader says of the first GPU."""
    (home / "gpu_monitor.py").write_bytes(script("gpu_monitor.py"))
    look = f"import time, gpu_monitor; print(gpu_monitor.Nvml().read({gpus.uuid(0)!r}, time.time() - 2, time.time()))"
    how = {
        "env": environment(gpus, home, PYTHONPATH=str(home)),
        "capture_output": True,
        "text": True,
        "timeout": 60,
    }
    done = subprocess.run([sys.executable, "-c", look], **how)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_a_gpu_without_memory_figures_is_read_all_the_same(
    gpus: FakeGpus, tmp_path: Path, code: int
) -> None:
    """As with unified memory, where the GPU's memory is the host's: NVML_ERROR_NOT_SUPPORTED, or another error."""
    gpus.set(0, 10, 500)
    gpus.process(os.getpid(), 0, 20, 3000)
    gpus.fail("nvmlDeviceGetMemoryInfo", code)
    found = sample(gpus, tmp_path)
    assert (
        "used_mib=None, total_mib=None" in found
        and f"{os.getpid()}: (" in found
        and "3000.0)" in found
    )
    assert "busy=None" not in found
    for name in ("TotalEnergyConsumption", "Samples", "ProcessUtilization"):
        gpus.fail(f"nvmlDeviceGet{name}", code)
    assert "3000.0)" in sample(gpus, tmp_path), "the VRAM of processes is still known"
    for name in ("", "MPS"):
        for version in ("", "_v2", "_v3"):
            gpus.fail(f"nvmlDeviceGet{name}ComputeRunningProcesses{version}", code)
    assert sample(gpus, tmp_path) == "None\n"


@pytest.mark.parametrize("code", [1, 2, 15, 16])
def test_a_gpu_that_has_gone_is_not_read(gpus: FakeGpus, tmp_path: Path, code: int) -> None:
    gpus.fail("nvmlDeviceGetMemoryInfo", code)
    assert sample(gpus, tmp_path) == "None\n"


def test_unknown_memory_is_neither_zero_nor_less_than_what_processes_have() -> None:
    reading = DeviceReading(
        2.0, 0.6, 100.0, None, None, [GpuProcess(A, 0.2, 3000), GpuProcess(B, 0.2, 4000)]
    )
    assert [used.vram_mib for used in divide(reading, [A, B], False).values()] == [3000, 4000]
    (used,) = divide(reading._replace(processes=[]), [A], True).values()
    assert used.vram_mib is None and used.gpu_seconds == 1.2
    assert not any("MemoryPeak" in line for line in gpu_monitor.lines(A, used, 1.0))


def test_it_reports_zero_at_once_and_then_each_slot(gpus: FakeGpus, tmp_path: Path) -> None:
    execute = tmp_path / "condor/execute"
    gpus.set(0, 10, 500)
    with (
        starter(execute, "sleep 60; true") as (_, one),
        starter(execute, "sleep 60; true", slot=2) as (_, two),
    ):
        gpus.process(one, 0, 20, 3000)
        gpus.process(two, 0, 40, 5000)
        found = reports(gpus, tmp_path, 3 * 4, DRONE_SHARES="3", DRONE_SHARING="time-sliced")
    for at, report in enumerate(found[:3], 1):
        assert report["SlotMergeConstraint"] == f"TARGET.SlotID == 1 && TARGET.DSlotId == {at}"
        assert (report["UptimeGPUsSeconds"], report["name"]) == ("0.000000", f"GPUsSlot1_{at}")
    first, second, third = found[9:]
    assert float(second["UptimeGPUsSeconds"]) == pytest.approx(
        2 * float(first["UptimeGPUsSeconds"]), rel=0.05
    )
    assert 0.2 < float(first["UptimeGPUsSeconds"]) < 2.0
    assert (first["UptimeGPUsMemoryPeakUsage"], second["UptimeGPUsMemoryPeakUsage"]) == (
        "3000",
        "5000",
    )
    assert (first["JobVramUsage"], second["JobVramUsage"]) == ("3000", "5000"), "after four seconds"
    assert abs(int(first["JobVramSince"]) - time.time()) < 60
    assert (
        0 < float(first["UptimeGPUsEnergyPeakUsage"]) < float(second["UptimeGPUsEnergyPeakUsage"])
    )
    assert (third["UptimeGPUsSeconds"], third["JobVramUsage"]) == ("0.000000", "0")


def test_the_use_of_an_mps_server_is_divided_among_its_clients(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    """As on an H200 with driver 580: NVML lists the use of the server alone, and the VRAM of each client."""
    execute, program = tmp_path / "condor/execute", tmp_path / "nvidia-cuda-mps-server"
    program.symlink_to(shutil.which("sleep") or "/bin/sleep")
    server = subprocess.Popen([program, "600"])
    try:
        gpus.process(server.pid, 0, 60, 66)
        with (
            starter(execute, "sleep 60; true") as (_, one),
            starter(execute, "sleep 60; true", slot=2) as (_, two),
        ):
            gpus.process(one, 0, 0, 3000, mps=True)
            gpus.process(two, 0, 0, 5000, mps=True)
            first, second, third = reports(
                gpus, tmp_path, 3 * 2, DRONE_SHARES="3", DRONE_SHARING="mps"
            )[3:]
    finally:
        server.kill()
        server.wait()
    assert (
        float(first["UptimeGPUsSeconds"])
        == float(second["UptimeGPUsSeconds"])
        == pytest.approx(0.6, rel=0.2)
    )
    assert (first["UptimeGPUsMemoryPeakUsage"], second["UptimeGPUsMemoryPeakUsage"]) == (
        "3000",
        "5000",
    )
    assert float(third["UptimeGPUsSeconds"]) == 0


def test_a_mig_instance_has_memory_but_no_use(gpus: FakeGpus, tmp_path: Path) -> None:
    """NVML does not know how busy an instance is. Zero would be taken for the truth."""
    gpus.mig(0, 2)
    with starter(tmp_path / "condor/execute", "sleep 60; true") as (pid, child):
        ad = tmp_path / f"condor/execute/dir_{pid}/scratch/.machine.ad"
        ad.write_text(f'AssignedGPUs = "{gpus.uuid(0, 1)}"\nDSlotId = 1\nSlotID = 1\n')
        gpus.process(child, "0:1", 50, 4000)
        found = reports(gpus, tmp_path, 4, DRONE_SHARES="2", DRONE_SHARING="mig")
    assert all("UptimeGPUsSeconds" not in each for each in found)
    assert found[2]["UptimeGPUsMemoryPeakUsage"] == "4000"


def test_a_lost_gpu_is_not_reported_as_idle(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.fail("nvmlDeviceGetMemoryInfo", 15)
    with starter(tmp_path / "condor/execute", "sleep 60; true"):
        found = reports(gpus, tmp_path, 4, DRONE_SHARES="2", DRONE_SHARING="time-sliced")
    assert [each["name"] for each in found] == [
        "GPUsSlot1_1",
        "GPUsSlot1_2",
        "GPUsSlot1_2",
        "GPUsSlot1_2",
    ]


def test_the_probe_says_what_the_driver_can_see(gpus: FakeGpus, tmp_path: Path) -> None:
    assert run(gpus, tmp_path, "probe").returncode == 0
    other = run(gpus, tmp_path, "probe", DRONE_PID_NAMESPACE="pid:[1]")
    assert other.returncode == 2, "NVML's process ids match no job in a namespace of a container"
    for version in ("", "_v2", "_v3"):
        gpus.fail(f"nvmlDeviceGetComputeRunningProcesses{version}", 3)
        gpus.fail(f"nvmlDeviceGetMPSComputeRunningProcesses{version}", 3)
    assert run(gpus, tmp_path, "probe").returncode == 2
    for name in ("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"):
        gpus.fail(name, 9)
    done = run(gpus, tmp_path, "probe")
    assert (done.returncode, done.stdout) == (1, "no GPU in /sys\n")


# ------------------------------------------------------------------------------------------------
# the script as shipped


def test_what_is_left_out_of_a_script_does_not_change_it() -> None:
    """The drone's files have to fit into the 64 KiB that Nova takes."""
    source = Path(gpu_monitor.__file__)
    shipped = script("gpu_monitor.py")
    assert _dumped(shipped) == _dumped(source.read_bytes())
    assert len(shipped) < len(source.read_bytes())
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash, which prints a script without comments")
    for file in sorted(source.parent.glob("*.sh")):
        # those that contain others as a whole differ by these
        if b"# @include " not in file.read_bytes():
            kept = _printed(bash, script(file.name))
            assert kept and kept == _printed(bash, file.read_bytes()), file.name
    assert b"\n# limit: 60\n" in script("mps_check.sh")
    assert script("condor_drone.sh").startswith(b"#!/bin/sh\n")


def _dumped(text: bytes) -> str:
    """Return a program's syntax tree with empty docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.dump(tree)


def _printed(bash: str, text: bytes) -> list[bytes]:
    done = subprocess.run(
        [bash, "--pretty-print", "/dev/stdin"], input=text, capture_output=True, check=True
    )
    return [line for line in done.stdout.splitlines() if line.strip()]
