"""The drone's checks of its scratch directory, of names, of its clock and of its GPUs, run as the drone runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from provisioner.drone import script
from tests.labs.bare_drone import DISCOVERY, bare_drone
from tests.labs.htcondor import account, lab_directory, until


def check(tmp_path: Path, name: str, **env: str) -> tuple[int, str]:
    """Exit status and last line of a check of a drone in ``tmp_path``."""
    (tmp_path / "condor").mkdir(exist_ok=True)
    done = subprocess.run(
        ["sh", "-c", script(name).decode()],
        env={"PATH": os.environ["PATH"], "DRONE_DIR": str(tmp_path), **env},
        text=True,
        capture_output=True,
        timeout=60,
    )
    return done.returncode, done.stdout.strip()


def function_of_the_drone(name: str) -> str:
    whole = script("condor_drone.sh").decode()
    close = "}" if f"\n{name}() {{" in whole else ")"
    start = whole.index(f"\n{name}() ")
    return whole[start : whole.index(f"\n{close}\n", start) + 3]


def fake(tmp_path: Path, tool: str, text: str) -> str:
    """A PATH with a fake of a tool."""
    file = tmp_path / "bin" / tool
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)
    return f"{file.parent}:{os.environ['PATH']}"


def test_a_good_scratch_directory_passes_and_keeps_nothing(tmp_path: Path) -> None:
    code, said = check(tmp_path, "scratch_check.sh", DRONE_DISK_MIB="1")
    assert (code, "takes and executes files" in said) == (0, True), said
    assert not list((tmp_path / "condor").iterdir())


def test_a_scratch_directory_that_is_not_there_or_too_small_fails(tmp_path: Path) -> None:
    """A drone on a full or read-only scratch directory put one job after the other on hold."""
    path = fake(tmp_path, "df", "echo Filesystem Blocks\necho none 2048 1024 1024 50% /\n")
    code, said = check(tmp_path, "scratch_check.sh", DRONE_DISK_MIB="40960", PATH=path)
    assert (code, said) == (1, f"1 MiB free in {tmp_path}/condor: at least 1024 MiB are needed")
    (tmp_path / "condor/execute/dir_1").mkdir(parents=True)
    assert check(tmp_path, "scratch_check.sh", DRONE_DISK_MIB="40960", PATH=path)[0] == 0, (
        "jobs may use it"
    )
    code, said = check(tmp_path, "scratch_check.sh", DRONE_DIR=str(tmp_path / "none"))
    assert (code, "cannot write" in said) == (1, True)


def test_a_scratch_directory_whose_files_cannot_be_executed_fails(tmp_path: Path) -> None:
    """As on a file system that is mounted noexec."""
    code, said = check(
        tmp_path, "scratch_check.sh", DRONE_DISK_MIB="1", PATH=fake(tmp_path, "chmod", "")
    )
    assert (code, "cannot execute a file" in said) == (1, True), said


@pytest.mark.parametrize(
    ("collector", "code"),
    [
        ("127.0.0.1:9618", 0),
        ("[::1]:9618", 0),
        ("<127.0.0.1:9618?sock=collector>", 0),
        ("localhost:9618", 0),
        ("no-such-host.invalid:9618", 1),
        ("no-such-host.invalid:9618,localhost:9618", 0),
    ],
)
def test_a_collector_whose_name_has_no_address_fails(
    tmp_path: Path, collector: str, code: int
) -> None:
    assert check(tmp_path, "names_check.sh", DRONE_COLLECTOR=collector)[0] == code


@pytest.mark.parametrize(
    ("ahead", "code", "words"),
    [
        ("0", 0, "0 s behind"),
        ("-299", 0, "299 s ahead of"),
        ("301", 1, "301 s behind"),
        ("-4000", 1, "4000 s ahead of"),
        ("x", 77, "no number"),
    ],
)
def test_a_clock_far_from_the_collectors_fails(
    tmp_path: Path, ahead: str, code: int, words: str
) -> None:
    assert check(tmp_path, "clock_check.sh") == (77, "not in the pool yet")
    (tmp_path / "condor/clock").write_text(f"{ahead}\n")
    found, said = check(tmp_path, "clock_check.sh")
    assert (found, words in said) == (code, True), said
    assert (
        check(tmp_path, "names_check.sh", DRONE_COLLECTOR="no-such-host.invalid:9618")[0] == 77
    ), "it has joined"


A100S = """0, GPU-9d1b6b3c-0000-0000-0000-000000000000, 0
1, GPU-9d1b6b3c-0000-0000-0000-000000000001, 3
10, GPU-9d1b6b3c-0000-0000-0000-000000000010, [N/A]
"""
"""Output of `nvidia-smi` on a host with three GPUs, the second of them broken."""
LISTED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-9d1b6b3c-0000-0000-0000-000000000000)
  MIG 3g.20gb     Device  0: (UUID: MIG-aa11)
  MIG 3g.20gb     Device  1: (UUID: MIG-aa12)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-9d1b6b3c-0000-0000-0000-000000000001)
GPU 10: NVIDIA A100-SXM4-40GB (UUID: GPU-9d1b6b3c-0000-0000-0000-000000000010)
  MIG 3g.20gb     Device  0: (UUID: MIG-cc11)
"""
"""Output of `nvidia-smi -L` for GPUs with MIG on, and off."""


HALVES = {"DRONE_SHARING": "mig", "DRONE_SHARES": "2"}
NVIDIA = "GPU-9d1b6b3c-0000-0000-0000-0000000000"


@pytest.mark.parametrize(
    ("devices", "gpus", "more", "verdict"),
    [
        ("0", 1, {}, "1 GPUs answer"),
        ("0,10", 2, {}, "2 GPUs answer"),
        (f"{NVIDIA}10,0", 2, {}, "2 GPUs answer"),
        ("MIG-aa11", 1, {}, "1 GPUs answer"),
        ("0", 1, HALVES, "2 GPUs answer"),
        ("MIG-aa11,MIG-aa12", 1, HALVES, "2 GPUs answer"),
        ("0,MIG-cc11", 1, HALVES, "3 GPUs answer"),
        ("0", 1, {"DRONE_SHARING": "mps", "DRONE_SHARES": "4"}, "1 GPUs answer"),
        ("MIG-bb22", 1, {}, "there is no MIG-bb22"),
        ("10", 1, HALVES, "the site assigned 1 of 2 GPUs: 10"),
        ("MIG-aa11", 1, HALVES, "the site assigned 1 of 2 GPUs: MIG-aa11"),
        ("0,1", 2, {}, "GPU 1 has 3 uncorrectable memory errors"),
        ("2", 1, {}, "there is no GPU 2, only 0 1 10"),
        ("GPU-ffff", 1, {}, "there is no GPU GPU-ffff, only 0 1 10"),
        ("0", 2, {}, "the site assigned 1 of 2 GPUs: 0"),
        ("NoDevFiles", 1, {}, "the site assigned no GPU: CUDA_VISIBLE_DEVICES is 'NoDevFiles'"),
        (None, 3, {}, "GPU 1 has 3 uncorrectable memory errors"),
    ],
)
def test_the_devices_of_the_site_are_there_and_well_or_it_says_why(
    tmp_path: Path, devices: str | None, gpus: int, more: dict[str, str], verdict: str
) -> None:
    """Without an assignment the host is all ours, and checked whole."""
    says = f"case $1 in -L) cat <<'Y'\n{LISTED}Y\n;; *) cat <<'X'\n{A100S}X\n;; esac\n"
    env = {"PATH": fake(tmp_path, "nvidia-smi", says), "DRONE_GPUS": str(gpus), **more}
    if devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = devices
    assert check(tmp_path, "gpu_check.sh", **env) == (
        0 if verdict.endswith("answer") else 1,
        verdict,
    )


DIVIDED = """GPU 0: NVIDIA H200 NVL (UUID: GPU-00000000-0000-0000-0000-000000000000)
  MIG 1g.18gb     Device  0: (UUID: MIG-0a)
  MIG 1g.18gb     Device  1: (UUID: MIG-0b)
GPU 1: NVIDIA H200 NVL (UUID: GPU-00000001-0000-0000-0000-000000000000)
  MIG 1g.18gb     Device  0: (UUID: MIG-1a)
  MIG 1g.18gb     Device  1: (UUID: MIG-1b)
  MIG 1g.18gb     Device  2: (UUID: MIG-1c)
"""
QUERIED = "0, GPU-00000000-0000-0000-0000-000000000000, {}\n1, GPU-00000001-0000-0000-0000-000000000000, {}\n"


@pytest.mark.parametrize(
    ("devices", "errors", "env", "verdict"),
    [
        ("0,1,2,3", (0, 0), {"DRONE_GPUS": "4"}, "4 GPUs answer"),
        ("4", (0, 0), {"DRONE_GPUS": "1"}, "1 GPUs answer"),
        ("5", (0, 0), {"DRONE_GPUS": "1"}, "there is no MIG instance 5, only 5"),
        ("0,1", (0, 7), {"DRONE_GPUS": "2"}, "2 GPUs answer"),
        ("0,2", (0, 7), {"DRONE_GPUS": "2"}, "GPU 2 has 7 uncorrectable memory errors"),
        ("0,1", (0, 0), {"DRONE_GPUS": "3"}, "the site assigned 2 of 3 GPUs: 0,1"),
        ("0", (0, 0), {"DRONE_GPUS": "1", **HALVES}, "2 GPUs answer"),
        ("1,2,3,4", (0, 0), {"DRONE_GPUS": "2", **HALVES}, "4 GPUs answer"),
    ],
)
def test_a_number_is_that_of_a_mig_instance_where_the_site_gives_instances(
    tmp_path: Path, devices: str, errors: tuple[int, int], env: dict[str, str], verdict: str
) -> None:
    """As Slurm numbers them in ``CUDA_VISIBLE_DEVICES``."""
    says = f"case $1 in -L) cat <<'Y'\n{DIVIDED}Y\n;; *) cat <<'X'\n{QUERIED.format(*errors)}X\n;; esac\n"
    found = check(
        tmp_path,
        "gpu_check.sh",
        PATH=fake(tmp_path, "nvidia-smi", says),
        CUDA_VISIBLE_DEVICES=devices,
        **env,
    )
    assert found == (0 if verdict.endswith("answer") else 1, verdict)


LOST = "Unable to determine the device handle for GPU 0000:1A:00.0: GPU is lost.  Reboot the system to recover this GPU"


@pytest.mark.parametrize("status", [0, 15])
@pytest.mark.parametrize(
    ("devices", "env", "verdict"),
    [
        ("1", {}, "1 GPUs answer"),
        ("7", {}, "there is no MIG instance 7, only 3"),
        (None, {"DRONE_GPUS": "3"}, "the site assigned 2 of 3 GPUs: 1,2"),
        ("2", HALVES, "2 GPUs answer"),
    ],
)
def test_a_lost_gpu_says_nothing_about_the_others(
    tmp_path: Path, status: int, devices: str | None, env: dict[str, str], verdict: str
) -> None:
    """The long listing counts without it."""
    listed = LISTED.replace("GPU 0:", "GPU 1:", 1).replace(
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-9d1b6b3c-0000-0000-0000-000000000001)", LOST
    )
    queried = f"{LOST}\n1, {NVIDIA}10, 0\n2, {NVIDIA}00, 0"
    says = f"case $1 in -L) cat <<'Y'\n{listed}Y\n;; *) cat <<'X'\n{queried}\nX\n;; esac\nexit {status}\n"
    how = {"PATH": fake(tmp_path, "nvidia-smi", says), **env}
    how |= {"CUDA_VISIBLE_DEVICES": devices} if devices else {}
    assert check(tmp_path, "gpu_check.sh", **how) == (
        0 if verdict.endswith("answer") else 1,
        verdict,
    )


def test_a_driver_that_fails_is_quoted_and_one_that_is_missing_is_a_failure_unless_the_site_simulates(
    tmp_path: Path,
) -> None:
    one, why = {"CUDA_VISIBLE_DEVICES": "0"}, "Unable to determine the device handle"
    failing = fake(tmp_path, "nvidia-smi", f"echo '{why}'\nexit 255\n")
    assert check(tmp_path, "gpu_check.sh", PATH=failing, **one) == (1, f"nvidia-smi failed: {why}")
    (tmp_path / "bin/nvidia-smi").unlink()
    without = {"PATH": "/usr/bin:/bin", **one}
    assert check(tmp_path, "gpu_check.sh", **without) == (1, "nvidia-smi is not on this host")
    assert check(tmp_path, "gpu_check.sh", DRONE_GPU_SIMULATE="4,8", **without)[0] == 77


def test_every_drone_runs_them() -> None:
    whole = script("condor_drone.sh").decode()
    for name in ("scratch_check.sh", "names_check.sh", "clock_check.sh", "gpu_check.sh"):
        assert f'cat >"$D/checks/{name}"' in whole
    assert "@include" not in whole.replace("# @include NAME", "")


HEARS = """
D=$PWD now=100 began=0 master=0 joined='' placed_at='' asking=yes
say() { :; }; leave() { :; }; kill() { :; }; renew_sessions() { :; }; remove_token() { :; }
hear_pool
echo "joined=$joined clock=$(cat clock 2>/dev/null)"
"""


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("listed", "found"),
    [
        (
            "Machine 1700000100 1700000098\nDaemonMaster 1700000100 1700000000\n",
            "joined=100 clock=2",
        ),
        ("Machine 1700000100 undefined\n", "joined=100 clock="),
        ("DaemonMaster 1700000100 1700000000\n", "joined= clock="),
        ("WARNING: this is a remark of the tool\nPERMISSION_DENIED (a) b\n", "joined= clock="),
        ("Machine 1700000100 a[$(echo>forged)]\n", "joined=100 clock="),
        ("Machine 1700000100 1" + 30 * "0" + "\n", "joined=100 clock="),
    ],
)
def test_a_drone_believes_only_numbers_of_the_ads_that_the_pool_lists(
    tmp_path: Path, shell: str, listed: str, found: str
) -> None:
    """A text in the clock of a forged slot ad was run as a command in the drones whose shell is
    bash, and a remark of the tool ended the drone or counted as its slot."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this host")
    (tmp_path / "etc/config.d").mkdir(parents=True)
    (tmp_path / "etc/config.d/10-ready").touch()
    (tmp_path / "listed").write_text("0\n")
    (tmp_path / "listed.out").write_text(listed)
    ran = subprocess.run(
        [shell, "-uc", function_of_the_drone("hear_pool") + HEARS],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "DRONE_FRESH_S": "300"},
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert (ran.stdout.strip(), ran.stderr) == (found, "")
    assert not (tmp_path / "forged").exists()


KILLS = """
now=0
rest() { now=$((now + 1)); }
carriers() { for each in $job $starter; do command kill -0 $each && echo $each; done 2>/dev/null; }
kill() { [ "$2" = $starter ] && echo starter >>killed || echo job >>killed; command kill "$@"; wait "$2"; }
sleep 100 & job=$!
./condor_starter 100 & starter=$!
sleep 0.2
kill_all
"""


def test_htcondor_is_killed_before_its_jobs(tmp_path: Path) -> None:
    """A starter that outlived its job told the pool that the job had ended by SIGKILL: the job left the queue."""
    shutil.copy(shutil.which("sleep") or "", tmp_path / "condor_starter")
    functions = "".join(map(function_of_the_drone, ("alive", "push", "kill_all")))
    subprocess.run(["sh", "-c", functions + KILLS], cwd=tmp_path, timeout=60, check=False)
    assert (tmp_path / "killed").read_text().split() == ["starter", "job"]


SENDERS = (
    "drone-kit-1@pool.example.org",
    "drone-kit-2@pool.example.org",
    "drone@pool.example.org",
    None,
)
"""Its own token, that of another drone, a name to which the pool maps all of them, and none."""


@pytest.mark.parametrize(
    ("identity", "believed"),
    [("", SENDERS), (SENDERS[0], (SENDERS[0], *SENDERS[2:]))],
    ids=["shared", "own"],
)
def test_a_drone_with_a_token_of_its_own_believes_no_ad_that_another_drone_has_sent(
    tmp_path: Path, identity: str, believed: tuple[str | None, ...]
) -> None:
    """An ad about it that another drone's token had sent set its clock, or kept it from noticing
    that its own had gone: a drone whose clock is hours off ends itself. So does one that does not
    find its own ad."""
    classad2 = pytest.importorskip("classad2", reason="the bindings evaluate the constraint")
    asks = 'D=$PWD now=100 placed_at="" prefix=/usr\nas_drone() { for word; do echo "$word"; done; }\nask_pool\nwait\n'
    subprocess.run(
        ["sh", "-uc", function_of_the_drone("ask_pool") + asks],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "DRONE_FRESH_S": "300",
            "DRONE_ID": "kit-1",
            "DRONE_IDENTITY": identity,
        },
        check=True,
        timeout=60,
    )
    (constraint,) = [
        line for line in (tmp_path / "listed.out").read_text().splitlines() if "DroneId" in line
    ]

    def lists(**told: object) -> bool:
        ad = classad2.ClassAd({name: value for name, value in told.items() if value is not None})
        return classad2.ExprTree(constraint).eval(ad) is True

    now = int(time.time())
    assert tuple(
        each
        for each in SENDERS
        if lists(DroneId="kit-1", AuthenticatedIdentity=each, LastHeardFrom=now)
    ) == (believed)
    assert not lists(DroneId="kit-1", AuthenticatedIdentity=SENDERS[0], LastHeardFrom=now - 400)
    assert not lists(DroneId="kit-2", AuthenticatedIdentity=SENDERS[0], LastHeardFrom=now)


VERDICTS = """
D=$PWD
reread_config() { echo read >>said; }
apply_gpu_verdicts; mkdir -p etc/config.d; apply_gpu_verdicts; apply_gpu_verdicts
"""


def test_verdicts_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    (tmp_path / "gpus.conf").write_text("OFFLINE_MACHINE_RESOURCE_GPUs = GPU-1\n")
    (tmp_path / "gpus.changed").touch()
    text = function_of_the_drone("apply_gpu_verdicts") + VERDICTS
    subprocess.run(["sh", "-uc", text], cwd=tmp_path, timeout=60, check=False, capture_output=True)
    assert (
        tmp_path / "etc/config.d/60-gpus"
    ).read_text() == "OFFLINE_MACHINE_RESOURCE_GPUs = GPU-1\n"
    assert (tmp_path / "said").read_text() == "read\n"


ORDERED = """
D=$PWD OK=0 running=0 now=10 order_asked_at=8 order='' prefix='' DRONE_ORDER_S=2 DRONE_ORDERS_FROM=boss DRONE_ID=kit-1
say() { :; }
as_drone() { echo 7 graceful boss; }
rest() { until [ -e order ]; do sleep 0.01; done; }
leave() { echo "$3: $4"; }
look_for_order
"""


def test_an_order_is_obeyed_in_the_look_that_asks_for_it(tmp_path: Path) -> None:
    """The next look comes a second later."""
    functions = map(function_of_the_drone, ("ask_order", "take_order", "look_for_order"))
    text = "".join(functions) + ORDERED
    done = subprocess.run(
        ["sh", "-uc", text], cwd=tmp_path, timeout=60, check=True, capture_output=True, text=True
    )
    assert done.stdout == "drained: ordered by boss\n"


@pytest.mark.parametrize("limit", ["kernel", "mps", "none", ""])
def test_a_site_that_shares_its_gpus_itself_says_how_vram_is_limited(limit: str) -> None:
    """The monitor of a drone does not see the processes of strangers on its GPU."""
    with lab_directory("enforced") as lab:
        account().give(lab)
        drone = bare_drone(lab, lab, checks={"gpu_check.sh": "exit 0\n"}, DRONE_VRAM_ENFORCED=limit)
        _, outcome = drone.wait()
        found = f'VramEnforced = "{limit or "none"}"\n'
        assert (drone.home / "log/master.out").read_text().startswith(found), outcome


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("watched", "drone: DRONE_VRAM_ENFORCED is watched: set it to kernel, mps or none\n"),
        ('mps"', "drone: DRONE_VRAM_ENFORCED has a character that is not one of a-z\n"),
    ],
)
def test_another_limit_of_vram_is_refused(limit: str, why: str) -> None:
    with lab_directory("refused") as lab:
        account().give(lab)
        drone = bare_drone(lab, lab, DRONE_VRAM_ENFORCED=limit)
        assert (drone.process.communicate(timeout=60)[0], drone.process.returncode) == (why, 64)


# ------------------------------------------------------------------------------------------ a
# driver that hangs later

HANGS = "trap '' TERM; touch {home}/hangs; while :; do sleep 0.2; done\n"
SECOND_TIME = "[ -e {home}/asked ] || {{ touch {home}/asked; {discovery} exit; }}\n"
EXCLUSIVE, MPS = {"DRONE_SHARING": "exclusive"}, {"DRONE_SHARING": "mps", "DRONE_SHARES": "2"}


@pytest.mark.parametrize(
    ("tool", "env"),
    [
        ("condor_gpu_discovery", MPS),
        ("nvidia-cuda-mps-control", MPS),
        ("nvidia-smi", EXCLUSIVE),
        ("python3", {**EXCLUSIVE, "DRONE_GPU_SIMULATE": ""}),
    ],
)
def test_a_drone_that_is_told_to_leave_does_not_wait_for_a_driver_that_hangs(
    tool: str, env: dict[str, str]
) -> None:
    """Each of them was waited for: for up to a minute, or for ever."""
    with lab_directory("hangs") as lab:
        hangs = HANGS.format(home=lab / "d")
        (lab / "bin").mkdir()
        for program in {tool, "nvidia-cuda-mps-control"}:
            (lab / "bin" / program).write_text(f"#!/bin/sh\n{hangs}")
            (lab / "bin" / program).chmod(0o755)
        account().give(lab)
        discovery = SECOND_TIME.format(home=lab / "d", discovery=DISCOVERY)
        drone = bare_drone(
            lab,
            lab / "bin",
            discovery=discovery + hangs if tool == "condor_gpu_discovery" else DISCOVERY,
            checks={"gpu_check.sh": "exit 0\n"},
            **env,
        )
        until((lab / "d/hangs").exists, 120, what="the driver hangs")
        began = time.monotonic()
        drone.process.terminate()
        code, outcome = drone.wait()
        assert (code, outcome["reason"], outcome["why"]) == (
            0,
            "stopped",
            "told to leave while the driver was asked",
        )
        assert time.monotonic() - began < 20


ASKS = """
D=$PWD asked='' now=0 OK=0
ask_driver 1 sh -c 'echo 1; exit 7'; echo "$? $(cat said)"
ask_driver 1 sleep 600; echo "$? $(cat said)"
"""


def test_a_driver_that_does_not_answer_is_left_behind(tmp_path: Path) -> None:
    functions = "".join(map(function_of_the_drone, ("alive", "rest", "ask_driver")))
    text = f"uptime_s() {{ read -r up _ </proc/uptime; echo ${{up%.*}}; }}\n{functions}{ASKS}"
    done = subprocess.run(
        ["sh", "-uc", text], cwd=tmp_path, timeout=60, check=False, capture_output=True, text=True
    )
    assert done.stdout == "7 1\n124 the driver does not answer\n", done.stderr


QUITS = """
D=$PWD
tell_mps() { touch $number.told; until [ -e 0.told ] && [ -e 2.told ]; do sleep 0.1; done; touch $number.quit; }
quit_mps
echo $(ls *.quit)
"""


def test_the_control_daemons_of_all_gpus_quit_at_one_time(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"mps/{n}").mkdir(parents=True)
    text = function_of_the_drone("quit_mps") + QUITS
    done = subprocess.run(
        ["sh", "-uc", text], cwd=tmp_path, timeout=60, check=False, capture_output=True, text=True
    )
    assert done.stdout == "0.quit 1.quit 2.quit\n", done.stderr


def as_drone(directory: Path, path: str) -> str:
    """Return what a tool of HTCondor's finds as the token of a drone whose own directory is ``directory``."""
    asks = f'D={directory} clean=env token=SECRET\nas_drone sh -c "readlink /proc/self/fd/0; cat /proc/self/fd/0"\n'
    asked = ["sh", "-uc", function_of_the_drone("as_drone") + asks]
    return subprocess.run(
        asked, env={"PATH": path}, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_the_token_for_a_tool_never_has_a_name(tmp_path: Path) -> None:
    """A job that opened the file in the moment in which it had a name read the token in 49 of 60 looks for an order."""
    told = as_drone(tmp_path / "missing", os.environ["PATH"])
    assert told.startswith("/memfd:token") and told.endswith("SECRET\n")


def test_without_python_the_token_for_a_tool_loses_its_name_before_it_is_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    for name in ("sh", "env", "mktemp", "rm", "timeout", "cat", "readlink"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    told = as_drone(tmp_path, str(tmp_path / "bin"))
    assert told.endswith("(deleted)\nSECRET\n") and not [*(tmp_path / "tmp").iterdir()]


SMI = """case $1 in
-L) echo 'Unable to determine the device handle for GPU0000:41:00.0: Unknown Error'
    echo 'GPU 0: NVIDIA A100 (UUID: GPU-aaaa)'; echo 'GPU 1: NVIDIA A100 (UUID: GPU-cccc)' ;;
-q) printf '%s\\n' 'GPU 00000000:01:00.0' '    GPU UUID              : GPU-aaaa' '    Minor Number          : 0'
    printf '%s\\n' 'GPU 00000000:41:00.0' '    GPU UUID              : Unknown Error' '    Minor Number          : 1'
    printf '%s\\n' 'GPU 00000000:81:00.0' '    GPU UUID              : GPU-cccc' '    Minor Number          : 2' ;;
esac
"""


@pytest.mark.parametrize(
    ("visible", "table"), [("1", "GPU-cccc /dev/nvidia2"), ("0", "GPU-aaaa /dev/nvidia0")]
)
def test_the_table_of_gpus_joins_by_uuid_after_one_was_lost(
    tmp_path: Path, visible: str, table: str
) -> None:
    text = "D=$PWD clean='' DRONE_GPUS=1\nask_driver() { shift; \"$@\" >said; }\n"
    text += (
        "".join(map(function_of_the_drone, ("gpu_table", "gpu_files", "assigned"))) + "gpu_table\n"
    )
    env = {"PATH": fake(tmp_path, "nvidia-smi", SMI), "CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run(
        ["sh", "-c", text], env=env, cwd=tmp_path, text=True, capture_output=True, timeout=60
    )
    assert done.stdout.strip() == table, done.stderr
