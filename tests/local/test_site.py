"""What the local site does besides the contract: allocations, environment, messages, disks that fail, hostile names."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.local import LocalSite
from provisioner.adapter_tests import eventually
from provisioner.drone import environment
from provisioner.interfaces import UnavailableError
from provisioner.model import (
    Bootstrap,
    DroneId,
    EndKind,
    FaultKind,
    OrderOutcome,
    RemoteEnd,
    StartOrder,
    StopOrder,
)
from tests.local.conftest import MakeSite
from tests.local.drones import CPU, HERE, LIVING, SMALL, config, holds, tagged

Order = Callable[..., StartOrder]
PRETENDED = [{"count": 8, "vram": "40 GiB", "capability": 8.0, "simulate": 4}]


async def ended(site: LocalSite, one: StartOrder) -> RemoteEnd:
    async def ask() -> RemoteEnd | None:
        drone = (await site.poll()).drones.get(one.drone_id)
        return drone.end if drone is not None else None

    return await eventually(f"{one.drone_id} has ended", ask, 60)


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("echo it leaves; exit 7", 7, "it leaves"),
        (r"printf 'queue lost\033[2J\n\n' > outcome; echo noise; exit 75", 75, "queue lost [2J"),
    ],
    ids=["log", "outcome"],
)
async def test_a_script_tells_its_code_and_last_words_made_printable(
    make_site: MakeSite, order: Order, script: str, code: int, message: str
) -> None:
    async with make_site() as site:
        await site.start([order(1, Bootstrap(f"#!/bin/sh\n{script}\n".encode()))])
        end = await ended(site, order(1))
        assert (end.kind, end.exit_code, end.message) == (EndKind.EXITED, code, message)


async def test_a_script_that_ends_takes_along_whatever_it_left_running(
    make_site: MakeSite, order: Order
) -> None:
    script = b"#!/bin/sh\nsetsid sh -c 'setsid sleep 1000 & sleep 1000' &\nsleep 0.1\nexit 0\n"
    async with make_site() as site:
        await site.start([order(1, Bootstrap(script))])
        end = await ended(site, order(1))
        assert (end.kind, end.exit_code) == (EndKind.EXITED, 0)
        assert tagged(order(1).drone_id, "sleep") == []


async def test_a_process_that_dropped_its_environment_ends_with_its_drone(
    make_site: MakeSite, order: Order, root: Path
) -> None:
    script = b"#!/bin/sh\nenv -i sleep 1000 &\necho $! >pid\nmv pid ready\nsleep 1000\n"
    one = order(1, Bootstrap(script))
    ready = root / one.drone_id / "drone/ready"
    async with make_site() as site:
        await site.start([one])
        await holds("it runs", ready.exists)
        bare = int(ready.read_text())
        assert bare not in tagged(one.drone_id), "it should carry no tag"
        await site.stop([StopOrder(one.drone_id, "", kill=True)])
        await holds("it is gone", lambda: not Path(f"/proc/{bare}").exists())


async def test_a_drone_knows_what_it_is_and_nothing_of_the_controllers_secrets(
    make_site: MakeSite, order: Order, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOL_PASSWORD", "hunter2")
    script = (
        b"#!/bin/sh\nenv > seen\npwd > where\ncat token > told\nreadlink /proc/self/fd/0 > stdin\n"
    )
    files = {"token": b"abc"}
    bootstrap = Bootstrap(script, {"FROM_OVERLAY": "yes", "DRONE_CPUS": "lies"}, files)
    async with make_site(env={"FROM_OPERATOR": "yes"}, gpus=PRETENDED, nice=5) as site:
        await site.start([order(1, bootstrap)])
        await ended(site, order(1))
    directory = root / order(1).drone_id / "drone"
    seen = dict(line.partition("=")[::2] for line in (directory / "seen").read_text().splitlines())
    expected = {
        **environment(order(1)),
        "PROVISIONER_DRONE_ID": order(1).drone_id,
        "DRONE_DIR": str(directory),
        "CUDA_VISIBLE_DEVICES": "0",
        "DRONE_GPU_SIMULATE": "4,8",
        "FROM_OVERLAY": "yes",
        "FROM_OPERATOR": "yes",
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert "POOL_PASSWORD" not in seen
    assert (directory / "where").read_text().strip() == str(directory)
    assert (directory / "told").read_text() == "abc"
    assert (directory / "stdin").read_text().strip() == "/dev/null"
    assert (directory / "token").stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700


async def test_drones_without_gpus_leave_the_gpus_to_others(
    make_site: MakeSite, order: Order, root: Path
) -> None:
    script = Bootstrap(b"#!/bin/sh\nenv > mine.new && mv mine.new mine\nexec sleep 1000\n")
    async with make_site([SMALL, CPU]) as site:
        assert (await site.poll()).free == {"small": 4, "cpu": 2}, (
            "alternatives: by CPUs they share 8"
        )
        receipts = await site.start([order(n, script, kind=CPU) for n in (1, 2, 3)])
        assert [r.answer for r in receipts] == [
            OrderOutcome.OK,
            OrderOutcome.OK,
            OrderOutcome.REJECTED,
        ]
        assert (await site.poll()).free == {"small": 1, "cpu": 0}
        assert [r.answer for r in await site.start([order(4, script)])] == [OrderOutcome.OK]
        mine = [root / order(n).drone_id / "drone" / "mine" for n in (1, 4)]
        await holds(
            "both have told what they were given", lambda: all(path.exists() for path in mine)
        )
        await site.stop([StopOrder(order(n).drone_id, "", kill=True) for n in (1, 2, 4)])
    cpu, gpu = (
        dict(line.partition("=")[::2] for line in file.read_text().splitlines()) for file in mine
    )
    assert (cpu["DRONE_GPUS"], cpu["DRONE_GPU_MILLI"], cpu["CUDA_VISIBLE_DEVICES"]) == (
        "0",
        "0",
        "",
    )
    assert (gpu["DRONE_GPUS"], gpu["CUDA_VISIBLE_DEVICES"]) == ("1", "0")


async def test_two_controllers_share_one_host_without_giving_anything_twice(
    root: Path, controller: str
) -> None:
    def site(name: str) -> LocalSite:
        return LocalSite(HERE, config(root), [SMALL], name)

    def orders(name: str) -> list[StartOrder]:
        return [
            StartOrder(DroneId(f"{name}-abcd-{n}"), SMALL, 600.0, 1.0, LIVING) for n in range(4)
        ]

    one, two = site(controller), site(f"{controller}-b")
    first, second = await asyncio.gather(
        one.start(orders(controller)), two.start(orders(f"{controller}-b"))
    )
    answers = [r.answer for r in (*first, *second)]
    assert (answers.count(OrderOutcome.OK), answers.count(OrderOutcome.REJECTED)) == (4, 4)
    both = ((one, controller), (two, f"{controller}-b"))
    assert [(await of.poll()).free for of, _ in both] == [{"small": 0}] * 2
    for of, name in both:
        await of.stop([StopOrder(o.drone_id, "", kill=True) for o in orders(name)])


@pytest.mark.parametrize("name", ["../token", "a/b", ".site", "", "x\0y", "-rf", "a\nb", ".."])
async def test_an_admission_file_cannot_be_put_elsewhere(
    make_site: MakeSite, order: Order, root: Path, name: str
) -> None:
    async with make_site() as site:
        [receipt] = await site.start([order(1, Bootstrap(b"#!/bin/sh\n", files={name: b"x"}))])
        assert receipt.answer is OrderOutcome.REJECTED
        assert os.listdir(root) == [".lock"]


@pytest.mark.parametrize(
    "name", ["../elsewhere", "x; rm -rf /", "", "KIT-1", "other-abcd-1", "a" * 64, ".site"]
)
async def test_an_id_that_is_not_ours_is_refused_and_stopping_it_harms_nothing(
    make_site: MakeSite, order: Order, root: Path, name: str
) -> None:
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    odd = StartOrder(name, SMALL, 600.0, 1.0, order(1).bootstrap)  # type: ignore[arg-type]
    async with make_site() as site:
        [receipt] = await site.start([odd])
        assert receipt.answer is OrderOutcome.REJECTED
        [receipt] = await site.stop([StopOrder(odd.drone_id, "", kill=True)])
        assert receipt.answer is OrderOutcome.OK
    assert elsewhere.is_dir()


async def test_whatever_else_lies_in_the_root_is_ignored(
    make_site: MakeSite, order: Order, root: Path, controller: str
) -> None:
    for name in ("x; rm -rf ~", "$(reboot)", "über", "-rf", "UPPER", "new\nline", ".hidden"):
        (root / name).mkdir()
    (root / f"{controller}-abcd-90").write_text("a file")
    (root / f"{controller}-abcd-91").symlink_to("/etc")
    (root / f"{controller}-abcd-92").mkdir()
    garbage = root / f"{controller}-abcd-93" / ".site"
    garbage.mkdir(parents=True)
    (garbage / "order.json").write_bytes(b'{"controller": 3, "\xff')
    async with make_site() as site:
        view = await site.poll()
        assert view.drones == {}
        assert view.free == {"small": 4}
        [notice] = view.notices
        assert "abcd-93" in notice
        for serial in (90, 91, 92, 93):
            [receipt] = await site.start([order(serial)])
            assert receipt.answer is not OrderOutcome.OK
            assert receipt.fault is not None
        await site.start([order(1)])
        assert set((await site.poll()).drones) == {order(1).drone_id}
        await site.stop([StopOrder(order(1).drone_id, "", kill=True)])
    assert os.readlink(root / f"{controller}-abcd-91") == "/etc"


def test_a_full_disk_is_a_receipt_and_leaves_nothing_running(
    make_site: MakeSite, order: Order, root: Path
) -> None:
    """A limit on file sizes stands in for a full disk: it fails the same calls, and needs no root."""

    def start_on_a_full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        [receipt] = asyncio.run(make_site().start([order(1)]))
        told = (
            receipt.fault is not None
            and receipt.fault.kind is FaultKind.NODE
            and bool(receipt.fault.message)
        )
        os._exit(42 if receipt.answer is OrderOutcome.REJECTED and told else 1)

    pid = os.fork()
    if pid == 0:
        try:
            start_on_a_full_disk()
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    assert tagged(order(1).drone_id) == []
    assert os.listdir(root) == [".lock"]


NVIDIA_SMI = "#!/bin/sh\necho '0, NVIDIA A100-SXM4-40GB, 40960, 8.0'\necho '1, NVIDIA H100 80GB HBM3, 81559, 9.0'\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\nexec sleep 1000\n", "nvidia-smi did not answer within 0.3 s"),
        (
            "#!/bin/sh\necho Failed to initialize NVML; exit 9\n",
            "nvidia-smi failed with status 9: Failed to init",
        ),
        (
            "#!/bin/sh\necho 'zero, what, is, this'\n",
            "nvidia-smi failed with status 0: zero, what, is, this",
        ),
    ],
)
async def test_a_broken_driver_is_a_fault_of_the_node_not_a_host_without_gpus(
    make_site: MakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr("adapters.local.resources.PROBE_TIMEOUT_S", 0.3)
    _program(tmp_path, monkeypatch, script)
    async with make_site(gpus="auto") as site:
        with pytest.raises(UnavailableError, match=said) as down:
            await site.poll()
        assert down.value.kind is FaultKind.NODE
        _program(tmp_path, monkeypatch, NVIDIA_SMI)
        assert (await site.poll()).free == {"small": 2}
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    async with make_site(gpus="auto") as site:
        view = await site.poll()
        assert view.free == {"small": 0}
        assert view.notices == ("no nvidia-smi on this host: it has no GPUs for drones",)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\nexec sleep 1000\n", "nvidia-smi did not answer within 0.3 s"),
        (
            "#!/bin/sh\necho Unable to determine the device handle for GPU 0; exit 15\n",
            "failed with status 15: Unable",
        ),
        (
            "#!/bin/sh\necho '0, [GPU is lost], [GPU is lost], [GPU is lost]'\n",
            "failed with status 0: 0, [GPU is",
        ),
    ],
)
async def test_a_broken_driver_leaves_the_drones_without_gpus(
    make_site: MakeSite,
    order: Order,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    said: str,
) -> None:
    monkeypatch.setattr("adapters.local.resources.PROBE_TIMEOUT_S", 0.3)
    _program(tmp_path, monkeypatch, script)
    async with make_site((SMALL, CPU), gpus="auto") as site:
        view = await site.poll()
        assert view.free["small"] == 0
        assert view.free["cpu"] > 0
        [notice] = view.notices
        assert said in notice
        assert notice.endswith(". Drones with GPUs do not start")
        [started] = await site.start([order(1, kind=CPU)])
        assert started.answer is OrderOutcome.OK
        _program(tmp_path, monkeypatch, NVIDIA_SMI)
        assert (await site.poll()).free["small"] == 0, (
            "it is not asked at each poll: that may take its time limit"
        )
        site._survey_again_at = 0.0
        view = await site.poll()
        assert view.free["small"] == 2
        assert not view.notices
        await site.stop([StopOrder(order(1).drone_id, "", kill=True)])


def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")


async def test_a_log_that_is_too_long_keeps_its_end_and_goes_on(
    make_site: MakeSite, order: Order, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.local.drones.LOG_LIMIT_BYTES", 1 << 20)
    script = (
        b"#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' x\necho the end\ntouch full\n"
        b"while [ ! -e go ]; do sleep 0.05; done\necho more\ntouch said\nexec sleep 1000\n"
    )
    log = root / order(1).drone_id / "log"

    async with make_site() as site:
        await site.start([order(1, Bootstrap(script))])
        await holds("the log is long", (log.parent / "drone/full").exists)
        await site.poll()
        assert log.stat().st_size < 600_000
        assert log.read_bytes().endswith(b"xthe end\n")
        (log.parent / "drone" / "go").touch()
        await holds("it wrote again", (log.parent / "drone/said").exists)
        assert log.read_bytes().endswith(b"xthe end\nmore\n"), "no hole where the beginning was"
        assert b"\0" not in log.read_bytes()
        await site.stop([StopOrder(order(1).drone_id, "", kill=True)])


async def test_controllers_of_one_name_see_each_other_for_as_long_as_they_live(
    make_site: MakeSite, root: Path, controller: str
) -> None:
    """A process of its own holds a claim; what a dead one left is removed, and other names do not count."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print('held', flush=True); input()"
    async with make_site() as site:
        assert await site.claim("ab12") == []
        for name, seen in (
            (f"{controller}-zz99-17", ["zz99 with pid 17"]),
            (f"{controller}-x-zz99-17", []),
        ):
            other = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, str(root / f".claim-{name}"), stdin=PIPE, stdout=PIPE
            )
            assert other.stdout is not None and await other.stdout.readline() == b"held\n"
            assert await site.claim("ab12") == seen
            await other.communicate(b"\n")
        assert await site.claim("ab12") == []
        assert not (root / f".claim-{controller}-zz99-17").exists()
        assert (await site.poll()).notices == ()
    async with make_site() as again:
        assert await again.claim("ab12") == [], "another adapter of this process, as after a reload"


def checked(sentence: str, code: int = 71) -> Bootstrap:
    """Return the script of a drone that a check ends."""
    outcome = "drone=d exit=71 reason=check-failed jobs_started=0 why=" + sentence.replace(
        " ", "%20"
    )
    return Bootstrap(f"#!/bin/sh\necho '{outcome}' >outcome\nexit {code}\n".encode())


async def free_small(site: LocalSite) -> int:
    return ((await site.poll()).free or {})["small"]


def given(root: Path, one: StartOrder) -> list[str]:
    """Return the indices of the GPUs that a drone got."""
    return sorted(
        json.loads((root / one.drone_id / ".site/order.json").read_text())["allocation"]["gpus"]
    )


BAD = "check gpu_check failed: 0 of 1 GPUs are healthy; GPU-a0a1a2a3: 1 uncorrectable memory errors (fatal)"


async def test_a_gpu_whose_check_failed_is_left_out_until_its_verdict_expires(
    make_site: MakeSite, order: Order, root: Path
) -> None:
    ill, well, again = order(1, checked(BAD)), order(2), order(3)
    end = root / ill.drone_id / ".site/end"
    async with make_site(gpus=[{"count": 2, "vram": "40 GiB"}], retain_finished="1s") as site:
        await site.start([ill])
        await ended(site, ill)
        view = await site.poll()
        assert (view.free or {})["small"] == 1 and not view.unfit
        assert any(
            "GPU 0 is left out" in notice and ill.drone_id in notice for notice in view.notices
        )
        await site.start([well])
        assert (given(root, ill), given(root, well)) == (["0"], ["1"])
        # kept beyond `retain_finished` as long as it counts
        for age_s, free in ((3600, 0), (90_000, 1)):
            os.utime(end, (end.stat().st_mtime - age_s,) * 2)
            assert await free_small(site) == free
        await site.start([again])
        assert given(root, again) == ["0"]
        await site.stop([StopOrder(each.drone_id, "", kill=True) for each in (well, again)])


@pytest.mark.parametrize(
    ("sentence", "code", "free"),
    [
        ("check gpu_check hung: no answer within 150 s", 72, 2),
        ("check gpu_check failed: GPU 1 has 4 uncorrectable memory errors", 71, 3),
        ("check gpu_discovery failed: HTCondor finds 1 of 2 GPUs", 71, 2),
        ("check scratch_check failed: no space left", 71, 4),
        ("GPU check failed: 0 of 2", 75, 4),
    ],
)
async def test_a_failed_check_leaves_out_the_gpus_that_it_speaks_of(
    make_site: MakeSite, order: Order, sentence: str, code: int, free: int
) -> None:
    pair = replace(SMALL, name="pair", gpu_milli=2000)
    async with make_site((SMALL, pair)) as site:
        one = order(1, checked(sentence, code), pair)
        await site.start([one])
        await ended(site, one)
        assert await free_small(site) == free


async def test_a_bad_gpu_of_an_earlier_boot_is_tried_again(
    make_site: MakeSite, order: Order, root: Path
) -> None:
    one = order(1, checked(BAD))
    record = root / one.drone_id / ".site/order.json"
    async with make_site() as site:
        await site.start([one])
        await ended(site, one)
        assert await free_small(site) == 3
        record.write_text(
            re.sub(
                r"(\d+ \d+ )[0-9a-f-]{36}",
                r"\g<1>00000000-0000-0000-0000-000000000000",
                record.read_text(),
            )
        )
        assert await free_small(site) == 4
