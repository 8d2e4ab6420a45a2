"""The drone's verdicts on single GPUs, with the fake GPU libraries, a kernel log and a sysfs tree of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import pytest

from provisioner.drone import gpu_health, script
from tests.labs.gpu import FakeGpus

IDS = ("GPU-a0a1a2a3", "GPU-b0b1b2b3", "GPU-c0c1c2c3")


@dataclass
class Node:
    """A worker node with three GPUs, and the directory of a drone that has all of them."""

    dir: Path
    gpus: FakeGpus
    env: dict[str, str] = field(default_factory=dict)

    def check(self, name: str = "gpu_check.sh", **env: str) -> tuple[int, str]:
        """Exit status and last line of a check, run as the drone runs it."""
        done = subprocess.run(
            ["sh", "-c", script(name).decode()],
            env={**self.env, **env},
            text=True,
            capture_output=True,
            timeout=120,
        )
        assert done.stderr == "", done.stderr
        return done.returncode, done.stdout.strip()

    @property
    def config(self) -> Mapping[str, str]:
        """The configuration that the startd gets."""
        lines = (self.dir / "condor/gpus.conf").read_text().splitlines()
        return {name: text for name, _, text in (line.partition(" = ") for line in lines)}

    def log(self, *lines: str) -> None:
        (self.dir / "kernel.log").write_text("".join(f"{line}\n" for line in lines))

    def job_on(self, gpu: str, folder: str = "scratch") -> Path:
        """Have a job run on a GPU, as far as the drone sees it. HTCondor 23 has the machine ad beside ``scratch``."""
        ad = self.dir / "condor/execute/dir_17" / folder / ".machine.ad"
        ad.parent.mkdir(parents=True)
        ad.write_text(f'Cpus = 1\nAssignedGPUs = "{gpu}"\n')
        return ad


@pytest.fixture
def node(tmp_path: Path) -> Node:
    gpus = FakeGpus.build(tmp_path / "gpus", 3)
    (tmp_path / "condor").mkdir()
    (tmp_path / "condor/gpu_health.py").write_bytes(script("gpu_health.py"))
    ads = "".join(
        f'{each.replace("-", "_")}=[ id="{each}"; DevicePciBusId="0000:0{n}:00.0"; ]\n'
        for n, each in enumerate(IDS, 1)
    )
    discovery = tmp_path / "condor_gpu_discovery"
    discovery.write_text(
        f"#!/bin/sh\ncat <<'END'\nDetectedGPUs=\"{', '.join(IDS)}\"\nCommon=[ Capability=8.0; ]\n{ads}END\n"
    )
    discovery.chmod(0o755)
    made = Node(tmp_path, gpus)
    made.env = {
        **gpus.env,
        "DRONE_DIR": str(tmp_path),
        "DRONE_DISCOVERY": str(discovery),
        "DRONE_GPUS": "3",
        "DRONE_GPU_MILLI": "3000",
        "DRONE_VRAM_MIB": "40536",
        "DRONE_KERNEL_LOG": str(tmp_path / "kernel.log"),
        "DRONE_GPU_PROBE_S": "60",
    }
    made.log()
    return made


def test_healthy_gpus_pass_and_their_memory_has_been_written_and_read(node: Node) -> None:
    assert node.check() == (0, "3 of 3 GPUs are healthy (cuda,nvml,xid)")
    assert (node.config["OFFLINE_MACHINE_RESOURCE_GPUs"], node.config["DroneGpusOffline"]) == (
        "",
        "0",
    )
    assert node.config["DroneGpuCheck"] == '"cuda,nvml,xid"'


@pytest.mark.parametrize(
    ("broken", "verdict"),
    [
        ({"ecc_uncorrected": 2}, "2 uncorrectable memory errors (fatal)"),
        ({"remap_failed": 1}, "row remapping has failed (fatal)"),
        ({"remap_pending": 1}, "row remapping is pending (reset)"),
        ({"throttle": 0x40}, "thermal slowdown (reset)"),
        ({"throttle": 0x80}, "power brake (reset)"),
        ({"pcie_width": 8}, "PCIe width x8 of x16 (reset)"),
        ({"memory_mib": 30000}, "30000 MiB of VRAM are free, 36482 are needed (reset)"),
        ({"corrupt": 1}, "a kernel read back 36482 MiB of VRAM with the sum "),
    ],
)
def test_one_bad_gpu_is_taken_offline_and_the_others_are_not(
    node: Node, broken: dict[str, int], verdict: str
) -> None:
    node.gpus.property(1, **broken)
    code, said = node.check()
    assert (code, said.startswith("2 of 3 GPUs are healthy")) == (0, True), said
    assert node.config["OFFLINE_MACHINE_RESOURCE_GPUs"] == IDS[1]
    assert node.config["DroneGpusOffline"] == "1"
    assert f"{IDS[1]}: {verdict}" in node.config["DroneGpusOfflineWhy"]
    assert (node.dir / "condor/gpus.changed").exists()


def test_software_throttling_and_findings_that_the_site_ignores_are_no_verdict(node: Node) -> None:
    node.gpus.property(0, throttle=0x4)  # the power cap, as under any load
    node.gpus.property(1, pcie_width=8)
    assert node.check(DRONE_GPU_IGNORE="pcie,ecc")[1].startswith("3 of 3")
    assert node.check()[1].startswith("2 of 3")


def test_memory_that_nvml_does_not_tell_of_is_found_missing_by_the_allocation(node: Node) -> None:
    node.gpus.fail("nvmlDeviceGetMemoryInfo", 3)
    node.gpus.property(1, memory_mib=30000)
    assert f"{IDS[1]}: no 36482 MiB of VRAM: 30000 of 30000 are free (reset)" in node.check()[1]


def test_all_gpus_bad_is_a_failed_check(node: Node) -> None:
    node.gpus.fail("cuInit", 999)
    code, said = node.check()
    assert (code, said.startswith("0 of 3 GPUs are healthy")) == (1, True), said
    assert f"{IDS[2]}: cuInit: CUDA_ERROR_UNKNOWN (999) (reset)" in said


@pytest.mark.parametrize("folder", ["scratch", "."])
def test_a_gpu_with_a_job_is_not_judged_by_its_free_memory(node: Node, folder: str) -> None:
    ad = node.job_on(IDS[0], folder)
    node.gpus.set(0, 0, 30000)
    assert node.check()[1].startswith("3 of 3")
    ad.unlink()
    os.mkfifo(ad)
    assert node.check()[1].startswith("2 of 3"), "a pipe of the job's does not stop the check"


def test_a_share_of_mps_is_probed_alone(node: Node) -> None:
    """The rest of the memory belongs to other jobs, and some of it to the server."""
    node.gpus.property(1, memory_mib=12000)
    assert node.check(DRONE_SHARING="mps", DRONE_SHARES="4") == (
        0,
        "3 of 3 GPUs are healthy (cuda,nvml,xid)",
    )


class StuckProbe:
    """A probe that does not answer, and has no process any more."""

    pid, returncode = 1 << 22, None
    started: ClassVar[list[Mapping[str, str]]] = []

    def __init__(self, command: list[str], env: Mapping[str, str], **_: object) -> None:
        self.started.append(env)

    def communicate(self, timeout: float) -> None:
        raise subprocess.TimeoutExpired("probe", timeout)


def test_a_probe_is_a_client_of_mps_and_one_that_has_gone_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps/gpus").write_text(f"0 {IDS[0]} {IDS[0]}-0000 5067\n")
    monkeypatch.setattr(gpu_health, "DIR", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", StuckProbe)
    state: dict[str, object] = {}
    findings, _ = gpu_health.probe_all({each: {"uuid": each} for each in IDS[:2]}, state)
    assert [kind for each in IDS[:2] for kind, _ in findings[each]] == ["hung", "hung"]
    assert state == {"stuck": {}}
    first, second = StuckProbe.started
    assert first["CUDA_MPS_PIPE_DIRECTORY"] == f"{tmp_path}/mps/0"
    assert (first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]) == (
        f"{IDS[0]}-0000",
        IDS[1],
    )


def test_an_mps_server_that_recovers_is_no_fault_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def recovers(pci: str, mib: int) -> None:
        raise OSError("cuCtxCreate_v2: CUDA_ERROR_MPS_SERVER_NOT_READY (807)")

    monkeypatch.setattr(gpu_health, "cuda_findings", recovers)
    monkeypatch.setattr(gpu_health, "nvml_findings", lambda uuid, free_mib: iter(()))
    gpu_health.probe(IDS[0], "", "", 64, 0, 0)
    assert capsys.readouterr().out == '["nvml", []]\n'


def test_htcondor_is_asked_once_for_the_gpus(node: Node) -> None:
    discovery = Path(node.env["DRONE_DISCOVERY"])
    discovery.write_text(discovery.read_text().replace("\n", f"\necho >>{node.dir}/asked\n", 1))
    for _ in range(2):
        assert node.check()[0] == 0
    assert (node.dir / "asked").read_text() == "\n"


def test_without_pci_addresses_no_xid_is_claimed_to_be_found(node: Node) -> None:
    """HTCondor 23.9 lists none of MIG instances."""
    discovery = Path(node.env["DRONE_DISCOVERY"])
    discovery.write_text(discovery.read_text().replace("DevicePciBusId", "Unknown"))
    node.check()
    assert node.config["DroneGpuCheck"] == '"cuda,nvml"'


def test_fewer_gpus_than_promised_are_a_failed_check(node: Node) -> None:
    assert node.check(DRONE_GPUS="4", CUDA_VISIBLE_DEVICES="0,1,2") == (
        1,
        "the site assigned 3 of 4 GPUs: 0,1,2",
    )
    node.gpus.fail("cuInit", 999)  # without /dev/nvidia-uvm
    why = "the site assigned 3 of 4 GPUs: all; cuInit: CUDA_ERROR_UNKNOWN (999)"
    assert node.check(DRONE_GPUS="4") == (1, why)


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def iso_time() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())


def kmsg(xid: int, bus: int = 2, ago_s: float = 5) -> str:
    return f"3,901,{int((now_s() - ago_s) * 1e6)},-;NVRM: Xid (PCI:0000:0{bus}:00): {xid}, pid=7, Ch 00000008"


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (lambda: kmsg(79), "Xid 79 (fatal)"),
        (lambda: kmsg(62), "Xid 62 (reset)"),
        (lambda: kmsg(31), ""),
        (lambda: kmsg(79, bus=7), ""),
        (lambda: kmsg(79, ago_s=50), ""),
        (lambda: kmsg(62, ago_s=5), "Xid 62 (reset)"),
        (lambda: kmsg(62, ago_s=30), ""),
        (lambda: f"[{now_s() - 3:.6f}] NVRM: Xid (PCI:0000:02:00): 48, pid='<unknown>'", "Xid 48 (fatal)"),
        (lambda: f"[{now_s() - 50:.6f}] gpu01 kernel: NVRM: Xid (PCI:0000:02:00): 48", ""),
        (lambda: f"{iso_time()}.123+00:00 gpu01 kernel: NVRM: Xid (PCI:0000:02:00): 95", "Xid 95 (fatal)"),
        (lambda: "2020-01-01T00:00:00+00:00 gpu01 kernel: NVRM: Xid (PCI:0000:02:00): 95", ""),
        (lambda: f"2020-01-01T00:00:00Z gpu01 kernel: [{now_s() * 2:.6f}] NVRM: Xid (PCI:0000:02:00): 95", ""),
        (lambda: f"{iso_time()}Z gpu01 kernel: [    1.000000] NVRM: Xid (PCI:0000:02:00): 95", "Xid 95 (fatal)"),
        (lambda: f"[{now_s() * 2:.6f}] gpu01 kernel: NVRM: Xid (PCI:0000:02:00): 48", ""),
        (lambda: "gpu01 kernel: NVRM: Xid (PCI:0000:02:00): 95", "Xid 95 (fatal)"),
        (lambda: "3,901,1,-;NVRM: Xid (0000:02:00): 95, Channel 1", ""),
        (lambda: kmsg(0).replace("(PCI:0000:02:00): 0", "(0000:02:00): 48"), "Xid 48 (fatal)"),
        (lambda: kmsg(0).replace(":00): 0", ":00 GPU-I:05): 48"), "Xid 48 (fatal)"),
        (lambda: kmsg(149) + " NETIR_LINK_EVT Nonfatal XC0 i0 Link 08", ""),
        (lambda: kmsg(149) + " NETIR_LINK_EVT Fatal XC0 i0 Link 08", "Xid 149 (reset)"),
        (lambda: kmsg(154) + " GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", ""),
        (lambda: kmsg(154) + " GPU recovery action changed from 0x0 (None) to 0x1 (Reset)", "Xid 154 (reset)"),
    ],
)  # fmt: skip
def test_an_xid_in_the_kernel_log_counts_by_its_class_and_age(
    node: Node, line: object, verdict: str
) -> None:
    assert callable(line)
    node.log("3,900,1,-;usb 1-1: new device", line())
    node.check(DRONE_GPU_FATAL_S="45", DRONE_GPU_RESET_S="25")
    expected = f'"{IDS[1]}: {verdict}"' if verdict else '""'
    assert node.config["DroneGpusOfflineWhy"] == expected


DATES = {
    "syslog": "%b %e %T gpu01 kernel: ",
    "syslog with a priority": "<2>%b %e %T gpu01 kernel: ",
    "syslog with a year": "%b %e %Y %T gpu01 kernel: ",
    "syslog with the kernel's time": "%b %e %T gpu01 kernel: [ 4145.174218] ",
    "journal, precise": "%b %d %T.123456 gpu01 kernel: ",
    "journal, full": "%a %F %T gpu01 kernel: ",
    "journal, seconds": "%s.123456 gpu01 kernel: ",
    "ISO without a zone": "%F %T gpu01 kernel: ",
    "ISO with T without a zone": "%FT%T,123 gpu01 kernel: [ 4145.174218] ",
    "ISO with a zone": "%FT%T.123%:z gpu01 kernel: ",
    "ISO with a zone without a colon": "%FT%T%z gpu01 kernel: ",
    "RFC 5424": "<2>1 %FT%T.123456%:z gpu01 kernel - - - ",
    "dmesg -T": "[%a %b %e %T %Y] ",
}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize("form", DATES.values(), ids=DATES)
def test_a_message_is_as_old_as_its_date_says(
    form: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    monkeypatch.setenv("LC_ALL", "C")
    time.tzset()
    try:
        for age_s in (18 * 86400, 40):
            now = int(time.time())
            command = ["date", "-d", f"@{now - age_s}", f"+{form}"]
            dated = subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.rstrip("\n")
            line = f"{dated}NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."
            assert gpu_health.message_age_s(line, {}, now) == pytest.approx(age_s, abs=1), line
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_old_message_of_syslog_is_no_news_to_a_drone_that_starts(node: Node) -> None:
    """One Xid 79 of last month must not close the GPU for a day after each start."""
    for ago_s, verdict in ((18 * 86400, '""'), (40, f'"{IDS[1]}: Xid 79 (fatal)"')):
        dated = time.strftime("%b %d %H:%M:%S", time.localtime(time.time() - ago_s))
        node.log(
            f"{dated} gpu01 kernel: [    1.000000] NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."
        )
        (node.dir / "condor/gpu_health.json").unlink(missing_ok=True)
        node.check()
        assert node.config["DroneGpusOfflineWhy"] == verdict


@pytest.mark.parametrize(
    ("date", "now", "age_s"),
    [
        ("Dec 31 23:59:50", "2027-01-01 00:00:10", 20),
        ("Jan  1 00:00:05", "2026-12-31 23:59:59", 0),
        ("Feb 29 12:00:00", "2026-02-28 12:00:00", 730 * 86400),
        ("Feb 30 12:00:00", "2026-03-01 12:00:00", 7),
        ("2026-13-01 12:00:00", "2026-03-01 12:00:00", 7),
        ("2031-01-01 12:00:00", "2026-03-01 12:00:00", 7),
        ("Mar  2 11:00:00", "2026-03-01 12:00:00", 0),
        ("Mar  3 12:00:00", "2026-03-01 12:00:00", 363 * 86400),
    ],
)
def test_the_year_of_a_date_is_the_latest_that_has_come(date: str, now: str, age_s: float) -> None:
    """A date that cannot be, or has not come, says nothing: such a message counts from when it was first seen."""
    line, at = (
        f"{date} gpu01 kernel: NVRM: Xid (PCI:0000:02:00): 79",
        datetime.fromisoformat(now).timestamp(),
    )
    assert gpu_health.message_age_s(line, {line: at - 7}, at) == age_s


def test_the_site_sets_the_classes_of_xids(node: Node) -> None:
    node.log(kmsg(31, bus=1), kmsg(79, bus=2), kmsg(62, bus=3))
    node.check(DRONE_XID_RESET="31", DRONE_XID_FATAL="")
    assert node.config["DroneGpusOfflineWhy"] == f'"{IDS[0]}: Xid 31 (reset)"'


def test_a_message_without_a_date_counts_from_when_it_was_first_seen(node: Node) -> None:
    node.log("gpu01 kernel: NVRM: Xid (PCI:0000:02:00): 62")
    assert node.check(DRONE_GPU_RESET_S="2")[1].startswith("2 of 3")
    time.sleep(2.1)
    assert node.check(DRONE_GPU_RESET_S="2")[1].startswith("3 of 3")


def test_a_log_that_cannot_be_read_is_told(node: Node) -> None:
    (node.dir / "bin").mkdir()
    (node.dir / "bin/journalctl").write_text("#!/bin/sh\nexit 1\n")
    (node.dir / "bin/journalctl").chmod(0o755)
    path = f"{node.dir}/bin:{node.env['PATH']}"
    assert (
        node.check(DRONE_KERNEL_LOG="/nonexistent", PATH=path)[1]
        == "3 of 3 GPUs are healthy (cuda,nvml)"
    )


def test_a_probe_that_hangs_is_a_verdict_on_its_gpu_alone(node: Node) -> None:
    node.gpus.property(1, hang=1)
    code, said = node.check(DRONE_GPU_PROBE_S="8")
    assert (code, f"{IDS[1]}: no answer within 8 s (reset)" in said) == (0, True), said
    assert said.startswith("2 of 3")


def test_a_probe_that_cannot_be_killed_is_not_repeated(node: Node) -> None:
    node.check()
    with subprocess.Popen(["sleep", "100"]) as stuck:
        began = Path(f"/proc/{stuck.pid}/stat").read_text().rpartition(")")[2].split()[19]
        state = node.dir / "condor/gpu_health.json"
        state.write_text(
            state.read_text().replace(
                '"stuck": {}', f'"stuck": {{"{IDS[2]}": [{stuck.pid}, "{began}"]}}'
            )
        )
        assert (
            f"{IDS[2]}: an earlier probe still hangs (reset)"
            in node.check(DRONE_GPU_RESET_S="1")[1]
        )
        stuck.kill()
    time.sleep(1.1)
    assert node.check()[1].startswith("3 of 3")


def test_a_verdict_expires_and_a_gpu_that_is_not_healthy_then_stays_offline(node: Node) -> None:
    node.gpus.property(1, pcie_width=8)
    short = {"DRONE_GPU_RESET_S": "3"}
    assert node.check(**short)[1].startswith("2 of 3")
    time.sleep(3.1)
    assert node.check(**short)[1].startswith("2 of 3"), "it is still bad"
    node.gpus.property(1, pcie_width=16)
    (node.dir / "condor/gpus.changed").unlink()
    assert node.check(**short)[1].startswith("2 of 3"), "its verdict has not expired"
    assert not (node.dir / "condor/gpus.changed").exists()
    time.sleep(3.1)
    assert node.check(**short)[1].startswith("3 of 3")
    assert (node.dir / "condor/gpus.changed").exists()


def test_a_gpu_that_disappears_goes_offline_and_htcondor_is_not_asked_any_more(node: Node) -> None:
    node.check()
    two = {"FAKE_GPUS": "2"}
    assert node.check(**two)[1].startswith("2 of 3")
    assert f"{IDS[2]}: the driver does not list it (reset)" in node.config["DroneGpusOfflineWhy"]
    Path(node.env["DRONE_DISCOVERY"]).write_text("#!/bin/sh\nexec sleep 600\n")
    assert node.check("gpu_discovery.sh") == (77, "a GPU is offline")


def test_state_that_a_job_has_overwritten_is_made_anew_without_large_allocations(
    node: Node,
) -> None:
    (node.dir / "condor/etc").mkdir()
    (node.dir / "condor/etc/condor_config").touch()
    (node.dir / "condor/gpu_health.json").write_text("{")
    node.gpus.property(1, memory_mib=1000)
    assert node.check(DRONE_GPU_IGNORE="vram")[1].startswith("3 of 3")


def test_nothing_is_allocated_on_a_gpu_with_a_job_and_little_where_one_may_come(node: Node) -> None:
    node.gpus.set(0, 0, 30000)
    assert "10536 MiB of VRAM are free, 36482 are needed" in node.check(DRONE_GPU_RESET_S="1")[1], (
        "the drone starts"
    )
    time.sleep(1.1)
    job = node.job_on(IDS[0])
    assert node.check()[1].startswith("3 of 3"), "it is the job's"
    node.gpus.fail("cuMemAlloc_v2", 719)
    code, said = node.check(DRONE_GPU_RESET_S="1")
    assert (code, said[:6], IDS[0] in said) == (0, "1 of 3", False), said
    node.gpus.repair("cuMemAlloc_v2")
    node.gpus.property(1, memory_mib=1000)
    time.sleep(1.1)
    shutil.rmtree(job.parent)
    node.gpus.set(0, 0, 0)
    more = {"DRONE_GPU_IGNORE": "vram"}
    assert node.check(**more)[1].startswith("3 of 3"), "64 MiB are there"
    said = node.check()[1]
    assert f"{IDS[1]}: 1000 MiB of VRAM are free, 36482 are needed (reset)" in said


def test_without_python_the_shell_asks_nvidia_smi(node: Node) -> None:
    bin_directory = node.dir / "bin"
    bin_directory.mkdir()
    for tool in ("sh", "cat", "tr", "cut", "paste", "grep", "head", "tail", "sed", "sort"):
        (bin_directory / tool).symlink_to(shutil.which(tool) or tool)
    path = {"PATH": f"{node.gpus.directory}:{bin_directory}"}
    assert node.check(CUDA_VISIBLE_DEVICES="0,1,2", **path) == (0, "3 GPUs answer")
    assert node.check(DRONE_VENDOR="amd", **path)[0] == 77
    assert not (node.dir / "condor/gpus.conf").exists()


@pytest.fixture
def amd(node: Node) -> Node:
    """The same node with AMD GPUs, the third of them one of Intel that a display uses."""
    for n, vendor in enumerate(("0x1002", "0x1002", "0x8086")):
        pci = node.dir / f"sys/devices/pci0000:00/0000:{n + 1:02x}:00.0"
        (pci / "ras").mkdir(parents=True)
        for name, text in (
            ("vendor", vendor),
            ("mem_info_vram_total", str(64 << 30)),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
            ("ras/umc_err_count", "ue: 0\nce: 3"),
        ):
            (pci / name).write_text(f"{text}\n")
        card = node.dir / f"sys/class/drm/card{n}"
        card.mkdir(parents=True)
        (card / "device").symlink_to(os.path.relpath(pci, card))
    discovery = Path(node.env["DRONE_DISCOVERY"])
    discovery.write_text(discovery.read_text().replace(f", {IDS[2]}", ""))
    node.env |= {
        "DRONE_VENDOR": "amd",
        "DRONE_SYS": str(node.dir / "sys"),
        "DRONE_GPUS": "2",
        "DRONE_VRAM_MIB": "65000",
    }
    return node


@pytest.mark.parametrize("by_pci_address", [True, False])
@pytest.mark.parametrize(
    ("file", "text", "verdict"),
    [
        ("ras/umc_err_count", "ue: 4\nce: 3", "4 uncorrectable memory errors (fatal)"),
        (
            "mem_info_vram_total",
            str(32 << 30),
            "it has 32768 MiB of VRAM, 65000 are promised (reset)",
        ),
        ("current_link_width", "4", "PCIe width x4 of x16 (reset)"),
    ],
)
def test_amd_gpus_are_judged_by_the_files_of_their_driver(
    amd: Node, by_pci_address: bool, file: str, text: str, verdict: str
) -> None:
    discovery = Path(amd.env["DRONE_DISCOVERY"])
    if not by_pci_address:
        discovery.write_text(discovery.read_text().replace("DevicePciBusId", "Unknown"))
    assert amd.check() == (0, "2 of 2 GPUs are healthy (sysfs)")
    (amd.dir / "sys/class/drm/card1/device" / file).write_text(f"{text}\n")
    assert amd.check()[1] == f"1 of 2 GPUs are healthy (sysfs); {IDS[1]}: {verdict}"


def test_an_amd_gpu_that_the_kernel_does_not_list_is_bad(amd: Node) -> None:
    (amd.dir / "sys/class/drm/card1/device").unlink()
    assert (
        amd.check()[1]
        == f"1 of 2 GPUs are healthy (sysfs); {IDS[1]}: the kernel does not list it (reset)"
    )
