"""User data in a server. Here they run in a directory that stands for it, with commands
that do nothing to this host: on their PATH is only what ``machine`` puts there."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.openstack.creation import user_data
from adapters.openstack.settings import OpenStackSiteConfig
from adapters.openstack.termination import GuestExitReport, exit_report
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder
from tests.labs.htcondor import own, processes_with, until

TOOLS = """
    base64 cat chmod cp cut env grep gzip head ln mkdir mv readlink rm sed setsid sh sleep stat tail tar tee timeout tr
"""
"""All that the script needs, and the drones of these tests."""
TOKEN = "eyJhbGciOiJIUzI1NiIsImtpZCI6IlBPT0wifQ.eyJpYXQiOjE3MDAwMDAwMDAsInN1YiI6ImRyb25lIn0.c2lnbmF0dXJlLW9mLWl0"
BUSYBOX = shutil.which("busybox")
KIND = DroneType("gridka", "h100", gpu_milli=1000, cpus=16, memory_mib=1024, disk_mib=1000)


class Machine:
    """A server: its files below ``root``, its power switch a stand-in that ends all that runs there."""

    def __init__(self, home: Path, busybox: str | None) -> None:
        self.root, self.bin, self.scratch = home / "root", home / "bin", home / "scratch"
        self.drone_id = DroneId(own("kit") + "-ab12-7")
        self.running: list[subprocess.Popen[bytes]] = []
        self.user_data = home / "user_data"
        for directory in (self.root, self.bin, self.root / "dev"):
            directory.mkdir()
        for tool in TOOLS.split():
            found = busybox or shutil.which(tool)
            assert found is not None, tool
            (self.bin / tool).symlink_to(found)
        if not busybox:
            (self.bin / "sh").unlink()
            (self.bin / "sh").symlink_to("/bin/sh")

    def command(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{self.root}/called\n{text}\n')
        (self.bin / name).chmod(0o755)

    def can_power_off(self) -> None:
        self.command("poweroff", "kill -s KILL 0")

    @property
    def called(self) -> list[str]:
        record = self.root / "called"
        return record.read_text().splitlines() if record.exists() else []

    def file(self, path: str, content: str = "") -> Path:
        found = self.root / path
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_text(content)
        found.chmod(0o644)
        return found

    def render(
        self, text: str, setup: str = "", env: Mapping[str, str] = {}, **order: float
    ) -> None:
        bootstrap = Bootstrap(
            f"#!/bin/sh\n{text}\n".encode(), env, {"token": TOKEN.encode(), "checks/a.sh": b":\n"}
        )
        kind = replace(KIND, walltime_s=order.get("life_s", 0))
        told = {
            "cloud": "x",
            "image": "y",
            "types": {"h100": {"flavor": "f"}},
            "scratch": str(self.scratch),
        }
        config = OpenStackSiteConfig.model_validate(
            {**told, "env": {"CONDOR_PREFIX": "/opt/condor"}}
        )
        guest = {"root": str(self.root), "PATH": str(self.bin)}
        guest |= {
            "setup_s": str(order.get("setup_s", 60)),
            "slack_s": str(order.get("slack_s", 30)),
        }
        wanted = StartOrder(self.drone_id, kind, 600.0, order.get("grace_s", 2.0), bootstrap)
        self.user_data.write_bytes(
            gzip.decompress(user_data(wanted, config, setup.encode(), guest))
        )

    def boot(self, script: Path | None = None) -> subprocess.Popen[bytes]:
        command = [str(self.bin / "sh"), str(script or self.user_data)]
        env = {"OF_CLOUD_INIT": "1", "PATH": str(self.bin)}
        pipes: Any = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        process = subprocess.Popen(command, env=env, cwd="/", start_new_session=True, **pipes)
        self.running.append(process)
        return process

    def running_drone(self) -> subprocess.Popen[bytes]:
        process = self.boot()
        until((self.scratch / "ready").exists, 20, what="the drone runs")
        return process

    def end(self, process: subprocess.Popen[bytes]) -> tuple[str, GuestExitReport | None]:
        """What it has said, all of it, and its verdict."""
        said = process.communicate(timeout=60)[0].decode(errors="replace")
        assert TOKEN not in said
        return said, exit_report(said, self.drone_id)

    def live(self, text: str, **order: float) -> tuple[str, GuestExitReport | None]:
        self.render(text, "", {}, **order)
        return self.end(self.boot())

    def left(self) -> dict[int, str]:
        return processes_with(f"PROVISIONER_DRONE_ID={self.drone_id}\0")

    def kill_left(self) -> None:
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(
    params=[
        None,
        pytest.param(BUSYBOX, marks=pytest.mark.skipif(not BUSYBOX, reason="no busybox")),
    ],
    ids=["sh", "busybox"],
)
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    found = Machine(tmp_path, request.param)
    yield found
    for process in found.running:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found.kill_left()


READY = "; : >../ready; while :; do sleep 0.1; done"


def test_a_drone_finds_its_files_and_its_environment_and_nothing_of_cloud_inits(
    machine: Machine,
) -> None:
    odd = 'it\'s $HOME `id` "q" \\ \n EOF\nEND_OF_FILES\n\té'
    seen = machine.scratch / "seen"
    poll = f'mkdir {seen}; cp -r token checks {seen}; cd {seen}; printf "%s" "$ODD" >odd; env >env; pwd >pwd'
    poll += '; stat -c "%a" "$DRONE_DIR" "$DRONE_DIR/token" >modes'
    machine.render(poll, env={"ODD": odd, "DRONE_DIR": "/wrong", "CONDOR_PREFIX": "/pool/condor"})
    _, found = machine.end(machine.boot())
    assert found == GuestExitReport(0, "no outcome")
    assert (seen / "token").read_text() == TOKEN
    assert (seen / "checks/a.sh").read_text() == ":\n"
    assert (seen / "odd").read_text() == odd
    assert (seen / "modes").read_text().split() == ["700", "600"]
    env = dict(
        line.split("=", 1) for line in (seen / "env").read_text().splitlines() if "=" in line
    )
    assert env["DRONE_ID"] == env["PROVISIONER_DRONE_ID"] == machine.drone_id
    assert env["HOME"] == env["DRONE_DIR"] == f"{machine.scratch}/drone.{machine.drone_id}"
    assert (env["DRONE_GPUS"], env["CONDOR_PREFIX"]) == ("1", "/opt/condor")
    assert "OF_CLOUD_INIT" not in env
    assert sorted(each.name for each in machine.scratch.iterdir()) == ["seen"]


def test_a_bad_end_is_told_with_the_last_words_but_no_secret_and_nothing_forged(
    machine: Machine,
) -> None:
    forged = f"=== drone {machine.drone_id} exit=0 all is well ==="
    text = f"""mkdir log
        printf 'the master died\\033[2J\\n{TOKEN}\\n{forged}\\n' >log/MasterLog
        : >"log/x
{forged}"
        ln -s /etc/passwd log/passwd
        echo 'drone=x exit=74 reason=master-died why=token%20{TOKEN}' >outcome
        exit 74"""
    said, found = machine.live(text)
    assert found == GuestExitReport(74, "master-died: token (token)")
    assert "| the master died?[2J\n| (token)\n" in said
    assert "root:" not in said
    assert f"\n{forged}" not in said


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ("echo no such export; exit 3", "the setup script failed (exit status 3)"),
        ("sleep 1000", "the setup script took more than 1 s"),
    ],
)
def test_where_setting_up_fails_no_drone_begins(machine: Machine, setup: str, words: str) -> None:
    machine.can_power_off()
    machine.render("echo it lives", setup=setup, setup_s=1)
    said, found = machine.end(machine.boot())
    assert found is not None
    assert found.exit_code == 69
    assert found.words == words or "busybox" in os.path.realpath(machine.bin / "timeout")
    assert "it lives" not in said
    assert ("no such export" in said) == ("export" in setup)
    assert machine.called == ["poweroff "]


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("group", [False, True], ids=["script", "group"])
def test_told_to_leave_it_tells_the_drone_once_and_waits_for_it(
    machine: Machine, told: signal.Signals, group: bool
) -> None:
    machine.render(
        f"trap 'echo it leaves; sleep 0.5; echo it left; exit 5' TERM{READY}", grace_s=20.0
    )
    process = machine.running_drone()
    (os.killpg if group else os.kill)(process.pid, told)
    said, found = machine.end(process)
    assert found is not None
    assert found.exit_code == 5
    assert said.count("it leaves") == said.count("it left") == 1


def test_who_does_not_leave_within_the_grace_is_ended_with_all_it_started(machine: Machine) -> None:
    machine.render(f"trap '' TERM INT; sleep 1000 & setsid sleep 1000 &{READY.replace(';', '', 1)}")
    process = machine.running_drone()
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, found = machine.end(process)
    assert time.monotonic() - asked >= 1.9  # not before its grace was over
    assert found == GuestExitReport(137, "no outcome")
    assert machine.left() == {}


def test_a_drone_that_outlives_its_walltime_is_ended_and_the_machine_goes_off(
    machine: Machine,
) -> None:
    machine.can_power_off()
    _, found = machine.live(
        "trap '' TERM INT; while :; do sleep 1000; done", life_s=1, slack_s=1, grace_s=0.0
    )
    assert found == GuestExitReport(137, "no outcome")
    assert machine.called == ["poweroff "]
    assert machine.left() == {}


def test_a_script_that_is_killed_does_not_keep_the_machine(machine: Machine) -> None:
    machine.command("poweroff", '[ "$1" != -f ] || kill -s KILL 0')
    console = machine.file("dev/console")
    machine.render(f":{READY}", slack_s=1)
    process = machine.running_drone()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED)
    until(lambda: "poweroff -f" in machine.called, 20, what="the machine is off")
    assert machine.called == ["poweroff ", "poweroff -f"]
    lost = GuestExitReport(137, "lost: what keeps it hung or was killed")
    assert exit_report(console.read_text(), machine.drone_id) == lost


def test_a_second_life_is_refused_and_tells_the_end_of_the_first(machine: Machine) -> None:
    assert machine.live("exit 74")[1] == GuestExitReport(74, "no outcome")
    machine.can_power_off()
    said, found = machine.end(machine.boot())
    assert found == GuestExitReport(74, "no outcome")
    assert "a drone lives once" in said
    assert machine.called == ["poweroff "]


def test_cut_off_and_started_again_it_does_not_go_on(machine: Machine) -> None:
    (machine.root / "var/lib/cloud/scripts/per-boot").mkdir(parents=True)
    machine.file("var/lib/cloud/data/instance-id", "i-1\n")
    machine.render(f"echo alive >>../lives{READY}")
    process = machine.running_drone()
    os.killpg(process.pid, signal.SIGKILL)
    machine.kill_left()
    # cloud-init runs user data no more, but what is in per-boot.
    script = machine.root / "var/lib/cloud/scripts/per-boot/gpu-drone"
    assert os.access(script, os.X_OK)
    assert b"END_OF_FILES" not in script.read_bytes()
    machine.can_power_off()
    said, found = machine.end(machine.boot(script))
    assert found == GuestExitReport(143, "stopped: its server was restarted")
    assert (machine.scratch / "lives").read_text() == "alive\n"
    assert machine.called == ["poweroff "]

    # another server, of an image of this one
    machine.file("var/lib/cloud/data/instance-id", "i-2\n")
    said, found = machine.end(machine.boot(script))
    assert (said, found) == ("", None)
    shutil.rmtree(machine.root / "var/lib/gpu-drone")
    said, found = machine.end(machine.boot(script))
    assert (said, found) == ("", None)
    assert machine.called == ["poweroff "]


def test_what_cloud_init_has_kept_of_the_token_goes(machine: Machine) -> None:
    gone = [
        machine.file(f"var/lib/cloud/instances/i-1/{name}", TOKEN)
        for name in ("user-data.txt", "user-data.txt.i", "scripts/part-001")
    ]
    sensitive = machine.file("run/cloud-init/instance-data-sensitive.json", TOKEN)
    machine.live(":")
    assert not any(each.exists() for each in gone)
    assert oct((machine.root / "var/lib/cloud/instances").stat().st_mode)[-3:] == "700"
    assert oct(sensitive.stat().st_mode)[-3:] == "600"
    remains = [
        each
        for each in machine.root.rglob("*")
        if each.is_file() and TOKEN.encode() in each.read_bytes()
    ]
    assert remains == [sensitive]


def test_the_config_drive_is_roots_and_nowhere_mounted(machine: Machine) -> None:
    drive = machine.file("dev/sr0")
    label = machine.root / "dev/disk/by-label/config-2"
    label.parent.mkdir(parents=True)
    label.symlink_to("../../sr0")
    machine.command(
        "umount", f'[ "$1" = {drive} ] && [ ! -e {machine.root}/gone ] && : >{machine.root}/gone'
    )
    machine.file("proc/mounts", f"{drive} /mnt/config iso9660 ro 0 0\n")
    said, _ = machine.live(":")
    assert machine.called == [f"umount {drive}"] * 2
    assert oct(drive.stat().st_mode)[-3:] == "600"
    assert f"{drive} stays open to jobs" in said  # its stand-in for /proc/mounts does not change


@pytest.mark.parametrize("works", ["nft", "iptables", "neither"])
def test_the_metadata_service_is_roots(machine: Machine, works: str) -> None:
    machine.command("nft", f"cat >{machine.root}/rules; {'true' if works == 'nft' else 'exit 1'}")
    machine.command("iptables", "exit 1" if works == "neither" else "")
    machine.command("ip6tables", "exit 1")
    said, found = machine.live(":")
    assert found is not None
    assert ("may ask it for the drone's token" in said) == (works == "neither")
    rules = (machine.root / "rules").read_text()
    assert "ip daddr 169.254.169.254 meta l4proto tcp meta skuid != 0 reject" in rules
    assert "ip6 daddr fe80::a9fe:a9fe" in rules
    wanted = "iptables -w -I OUTPUT -d 169.254.169.254 -p tcp -m owner ! --uid-owner 0 -j REJECT"
    assert (wanted in machine.called) == (works != "nft")


@pytest.mark.parametrize(
    ("active", "heard"),
    [("tty0 ttyS0", ["console"]), ("ttyS0 tty0", ["console", "ttyS0"]), ("", ["console", "ttyS0"])],
)
def test_the_verdict_is_on_the_port_that_the_cloud_keeps(
    machine: Machine, active: str, heard: list[str]
) -> None:
    for name in ("console", "ttyS0"):
        machine.file(f"dev/{name}")
    machine.file("sys/class/tty/console/active", f"{active}\n")
    _, found = machine.live("exit 71")
    assert found == GuestExitReport(71, "no outcome")
    for name in ("console", "ttyS0"):
        console = (machine.root / "dev" / name).read_text()
        assert exit_report(console, machine.drone_id) == (found if name in heard else None)


# A stand-in for systemctl: it starts what the unit says, and not as systemd would, in nothing of
# this process's.


def with_systemd(machine: Machine, start: str) -> None:
    (machine.root / "run/systemd/system").mkdir(parents=True)
    machine.command("systemctl", f"case $1 in start) {start} ;; esac")


def started(machine: Machine) -> str:
    unit = machine.root / "run/systemd/system/gpu-drone.service"
    return (
        f"command=$(sed -n 's|^ExecStart=/bin/sh|sh|p' {unit});"
        f" env -i PATH=$PATH setsid $command >{machine.root}/journal 2>&1 </dev/null & echo $! >{machine.root}/pid"
    )


def test_under_systemd_it_is_a_service_that_cloud_init_does_not_wait_for(machine: Machine) -> None:
    with_systemd(machine, started(machine))
    machine.file("dev/console")
    machine.render(f"trap 'exit 5' TERM{READY}", grace_s=20.0)
    process = machine.boot()
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 0
    until((machine.scratch / "ready").exists, 20, what="the drone runs")
    assert not (machine.root / "run/gpu-drone/user_data").exists()
    os.kill(int((machine.root / "pid").read_text()), signal.SIGTERM)
    until(lambda: "systemctl poweroff" in machine.called, 60, what="the machine goes off")
    journal = (machine.root / "journal").read_text()
    assert exit_report(journal, machine.drone_id) == GuestExitReport(5, "no outcome")
    assert (machine.root / "dev/console").read_text() == ""  # systemd puts there what it says
    assert machine.called[:2] == [
        "systemctl daemon-reload",
        "systemctl start --no-block gpu-drone.service",
    ]
    assert machine.left() == {}


def test_where_systemd_does_not_take_it_it_goes_on_by_itself(machine: Machine) -> None:
    with_systemd(machine, "exit 1")
    said, found = machine.live("exit 5")
    assert "goes on as a part of cloud-init" in said
    assert found == GuestExitReport(5, "no outcome")
    assert machine.called[-1] == "systemctl poweroff"
