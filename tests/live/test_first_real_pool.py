"""The guide to the first real pool, followed to the letter by an ordinary account on a pool of each version.

It ends with jobs done, and a job that looks for secrets of the controller finds none.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.labs.accounts import host_of_accounts
from tests.labs.controller import LabController
from tests.labs.gpu import FakeGpus
from tests.labs.htcondor import Condor, Pool, gpu_job, lab_directory, own, running_pool, until

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "first-real-pool.md").read_text()
SPY = Path(__file__).with_name("spy.py").read_text()


def block(beginning: str) -> str:
    """The guide's commands that begin so."""
    (found,) = [
        text
        for text in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
        if text.startswith(beginning)
    ]
    return found


def scopes(identity: str) -> list[str]:
    """The `-authz` of the guide's command for a token."""
    (line,) = [
        line for line in GUIDE.splitlines() if f"condor_token_create -identity {identity}@" in line
    ]
    return re.findall(r"-authz (\w+)", line)


def allowed(domain: str) -> list[str]:
    """The guide's lines for the pool's configuration."""
    lines = [line for line in GUIDE.splitlines() if re.match(r"(COLLECTOR\.)?ALLOW_", line)]
    return [line.replace("pool.example.org", domain) for line in lines]


def token_and_key(pool: Pool) -> dict[str, str]:
    """Follow the guide on the pool's central manager; return the files for the controller."""
    key = base64.encodebytes(secrets.token_bytes(36)).decode()  # as `openssl rand -base64 48`
    shared = pool.key.with_name("drones")
    shared.touch(mode=0o600)
    shared.write_text(key)
    pool.account.give(shared)
    with pool.config.open("a") as config:
        config.writelines(f"{line}\n" for line in allowed(pool.domain))
    pool._tool(["condor_reconfig"], pool.config)
    return {
        "controller.token": pool.token("provisioner", scopes("provisioner")) + "\n",
        "drones.key": key,
    }


def declare_gpus(site: Path) -> None:
    """Have the drones find GPUs that HTCondor simulates: those of this host are NVIDIA's libraries alone."""
    gpus = "{count: 2, model: A100-SXM4-40GB, vram: 40536 MiB, capability: 8.0, simulate: 4}"
    text = site.read_text()
    assert "vram: 40536 MiB" in text and text.count("options:\n") == 1, "as nvidia-smi lists it"
    site.write_text(text.replace("options:\n", f"options:\n  gpus: [{gpus}]\n"))


def test_the_guide_has_twelve_commands() -> None:
    steps = GUIDE.partition("If nothing happens")[0]
    blocks = re.findall(r"```sh\n(.*?)```", steps, re.DOTALL)
    assert len("".join(blocks).splitlines()) == 12


def answer(pool: Pool, program: Path) -> str:
    """Return what a job prints."""
    job = pool.submit(gpu_job(program=program))
    until(lambda: not pool.jobs(job), 120, what="the job is done", every_s=0.5)
    return (pool.dir / "jobs" / f"out.{job}.0").read_text()


@pytest.mark.matrix
def test_the_guide_ends_with_jobs_done(condor: Condor, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_the_guide(condor, monkeypatch, (sys.executable, "-m", "provisioner.cli"))


def follow_the_guide(
    condor: Condor, monkeypatch: pytest.MonkeyPatch, program: Sequence[str], set_up: str = "true"
) -> None:
    """Follow it with a program that a script of root's makes available, in a namespace of its own."""
    with (
        lab_directory("guide") as place,
        host_of_accounts(place) as host,
        running_pool(condor) as pool,
    ):
        gpus = FakeGpus.build(place / "gpus")
        for name, value in gpus.env.items():
            monkeypatch.setenv(name, value if name != "PATH" else f"{value}:{os.environ['PATH']}")
        host.run(set_up)
        host.add(user := "guide")
        # To begin with, the account may use `sudo`; the rule of the guide is all that stays.
        host.run(f"echo '{user} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/setup")
        home = host.place / "home" / user
        directory = Path(host.run(block("mkdir") + "pwd", user, home).strip())
        host.run(block("sudo useradd"), user, directory)
        host.run("rm /etc/sudoers.d/setup")
        mark = f"SECRET-OF-CONTROLLER-{secrets.token_hex(4)}"
        controller = LabController(
            pool,
            directory,
            name=own("here"),
            around=[*host.words(user), f"MARK={mark}"],
            program=program,
        )
        for name, text in token_and_key(pool).items():
            controller.secret(name, text)
        host.run(f"chown {user}: *", cwd=directory)
        try:
            init = block("provisioner init").replace("pool.example.org:9618", pool.collector)
            values = f"--set controller={controller.name} --set condor_prefix={pool.condor.prefix}"
            provisioner = f'provisioner() {{ {shlex.join(program)} "$@"; }}'
            for command in (
                f"{init.strip()} {values}",
                block("provisioner check").partition("#")[0],
            ):
                seen = host.run(f"{provisioner}\n{command} 2>&1", user, directory)
                assert "warning" not in seen, seen
            assert "site:local" in seen
            declare_gpus(directory / "local.yaml")
            controller.begin()
            other = pool.submit(gpu_job(100, more='+Secret = "of another job"'))
            until(
                lambda: pool.statuses(other) == [2],
                120,
                what="another drone runs a job",
                every_s=0.5,
            )
            spy = f"exec python3 - {directory} <<'EOF'\n{SPY}\nEOF\n"
            seen = json.loads(answer(pool, pool.program("spy", spy)))
            assert seen["account"] == "gpu-drones" and seen["files"] == seen["sockets"] == [], seen
            assert seen["tried"] > 20 and seen["others"] > 1, "it has looked"
            assert seen["processes"] == [] and seen["tokens"] == [], seen
            pool.remove(other)
            drone = controller.drones()[0]
            controller.prints(
                "drones", "drain", "--site", "local", "--reason", "end of the test", "--yes"
            )
            until(lambda: not controller.live(), 60, what="the drones have left", every_s=0.5)
            assert drone["type"] == "local/a100-sxm4-40gb" and controller.states()["failed"] == 0
            assert mark not in controller.log()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{controller.story()}") from error
        finally:
            controller.clean_up()
