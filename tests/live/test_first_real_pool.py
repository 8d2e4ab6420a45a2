"""The guide to the first real pool, followed to the letter by an ordinary account on a pool of each version.

It ends with jobs done, and a job that looks for secrets of the controller finds none.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from pathlib import Path

import pytest

from tests.labs.accounts import host_of_accounts
from tests.labs.controller import LabController
from tests.labs.htcondor import Condor, Pool, gpu_job, lab_directory, own, running_pool, until

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "first-real-pool.md").read_text()
SPY = Path(__file__).with_name("spy.py").read_text()


def files() -> dict[str, str]:
    """The two files of the guide, by name."""
    blocks = re.findall(r"```yaml\n# ([\w.]+)\n(.*?)```", GUIDE, re.DOTALL)
    return dict(blocks)


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
        line
        for line in GUIDE.splitlines()
        if line.startswith(f"condor_token_create -identity {identity}@")
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


def answer(pool: Pool, program: Path) -> str:
    """Return what a job prints."""
    job = pool.submit(gpu_job(program=program))
    until(lambda: not pool.jobs(job), 120, what="the job is done", every_s=0.5)
    return (pool.dir / "jobs" / f"out.{job}.0").read_text()


@pytest.mark.matrix
def test_the_guide_ends_with_jobs_done(condor: Condor) -> None:
    with (
        lab_directory("guide") as place,
        host_of_accounts(place) as host,
        running_pool(condor) as pool,
    ):
        host.add(user := "guide")
        # To begin with, the account may use `sudo`; the rule of the guide is all that stays.
        host.run(f"echo '{user} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/setup")
        directory = Path(host.run(block("export PATH") + "pwd", user, ROOT).strip())
        host.run(block("sudo useradd"), user, directory)
        host.run("rm /etc/sudoers.d/setup")
        mark = f"SECRET-OF-CONTROLLER-{secrets.token_hex(4)}"
        controller = LabController(
            pool, directory, name=own("here"), around=[*host.words(user), f"MARK={mark}"]
        )
        prefix = pool.condor.prefix
        # What the reader changes: names of the pool, places of HTCondor, the shape of this host
        # (its GPU is declared).
        changes = {
            "provisioner.yaml": {
                "controller: here": f"controller: {controller.name}",
                "pool.example.org:9618": pool.collector,
                "trust_domain: pool.example.org": f"trust_domain: {pool.domain}",
                "# condor_prefix: /opt/condor ": f"condor_prefix: {prefix} ",
                "# drain_tool: /opt/condor/usr/bin/condor_drain": f"drain_tool: {prefix}/usr/bin/condor_drain",
                "store:\n  path: var/provisioner.db": "store:\n  path: provisioner.db",
            },
            "local.yaml": {
                "cpus: 8": "cpus: 1",
                "memory: 20 GiB": "memory: 512 MiB",
                "disk: 50 GiB": "disk: 1 GiB",
                "options:\n": "options:\n  gpus: [{count: 2, model: A100-SXM4-40GB, vram: 40 GiB, capability: 8.0,"
                " simulate: 4}]\n",
            },
        }
        written = token_and_key(pool)
        for name, text in files().items():
            for old, new in changes[name].items():
                assert old in text, f"{name} of the guide has no {old!r}"
                text = text.replace(old, new)
            written[name] = text
        for name, text in written.items():
            controller.secret(name, text)
        host.run(f"chown {user}: *", cwd=directory)
        try:
            checked = controller.call("check")
            assert checked.returncode == 0 and "warning" not in checked.stderr, (
                checked.stdout + checked.stderr
            )
            controller.prints("check", "--live")
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
            assert drone["type"] == "local/a100" and controller.states()["failed"] == 0
            assert mark not in controller.log()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{controller.story()}") from error
        finally:
            controller.clean_up()
