"""The guide to the first real pool, followed to the letter on a pool of each version, ends with jobs done."""

from __future__ import annotations

import base64
import re
import secrets
from pathlib import Path

import pytest

from tests.labs.controller import LabController
from tests.labs.htcondor import Pool, gpu_job, until

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "first-real-pool.md").read_text()


def files() -> dict[str, str]:
    """The two files of the guide, by name."""
    blocks = re.findall(r"```yaml\n# ([\w.]+)\n(.*?)```", GUIDE, re.DOTALL)
    return dict(blocks)


def scopes(identity: str) -> list[str]:
    """The `-authz` of the guide's command for a token."""
    (line,) = [line for line in GUIDE.splitlines() if line.startswith(f"condor_token_create -identity {identity}@")]
    return re.findall(r"-authz (\w+)", line)


def allowed(domain: str) -> list[str]:
    """The guide's lines for the pool's configuration."""
    lines = [line for line in GUIDE.splitlines() if re.match(r"(COLLECTOR\.)?ALLOW_", line)]
    return [line.replace("pool.example.org", domain) for line in lines]


@pytest.mark.matrix
def test_the_guide_ends_with_jobs_done(lab: tuple[Pool, LabController]) -> None:
    pool, controller = lab
    controller.directory.mkdir(parents=True)
    prefix = pool.condor.prefix
    # What the reader changes: names of the pool, places of HTCondor, the shape of this host (its GPU is declared). The
    # account of the drones is tried in tests/local/test_account.py: here the drones of root become nobody.
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
            "root: /var/lib/gpu-drones": "root: drones",
            "account: gpu-drones ": "same_account: true ",
            "options:\n": "options:\n  gpus: [{model: A100-SXM4-40GB, vram: 40 GiB, capability: 8.0, simulate: 4}]\n",
        },
    }
    for name, text in files().items():
        for old, new in changes[name].items():
            assert old in text, f"{name} of the guide has no {old!r}"
            text = text.replace(old, new)
        (controller.directory / name).write_text(text)
    controller.secret("controller.token", pool.token("provisioner", scopes("provisioner")) + "\n")
    key = base64.encodebytes(secrets.token_bytes(36)).decode()  # as `openssl rand -base64 48`
    controller.secret("drones.key", key)
    shared = pool.key.with_name("drones")
    shared.touch(mode=0o600)
    shared.write_text(key)
    pool.account.give(shared)
    with pool.config.open("a") as config:
        config.writelines(f"{line}\n" for line in allowed(pool.domain))
    pool._tool(["condor_reconfig"], pool.config)

    checked = controller.call("check")
    assert checked.returncode == 0 and "warning" not in checked.stderr, checked.stdout + checked.stderr
    controller.prints("check", "--live")
    controller.begin()
    job = pool.submit(gpu_job(1))
    until(lambda: not pool.jobs(job), 120, what="the job is done", every_s=0.5)
    [drone] = controller.drones()
    controller.prints("drones", "drain", "--site", "local", "--reason", "end of the test", "--yes")
    until(lambda: not controller.live(), 60, what="the drone has left", every_s=0.5)
    assert drone["type"] == "local/a100" and controller.states()["failed"] == 0
