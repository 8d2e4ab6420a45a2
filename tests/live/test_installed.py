"""The guide to the installation, followed to the letter: who can read what of the controller and of the web service."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs.accounts import HostOfAccounts, host_of_accounts
from tests.labs.htcondor import until

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "install.md").read_text()
SPY = Path(__file__).with_name("spy.py").read_text()
CONFIG = "/etc/provisioner/provisioner.yaml"
AS_THE_PACKAGE = """
systemd-sysusers $PWD/packaging/systemd/provisioner.sysusers
systemd-tmpfiles --create $PWD/packaging/systemd/provisioner.tmpfiles
mkdir /etc/provisioner/examples /etc/provisioner/shared
cp site_configs/*.yaml /etc/provisioner/examples
cp packaging/provisioner.sudoers packaging/systemd/provisioner-local.conf /etc/provisioner/shared
"""
"""Accounts, directories and files of the packages, whose own tests run them."""
PLACES = (
    "/etc/provisioner",
    "/etc/provisioner/tokens",
    "/var/lib/provisioner",
    "/run/provisioner-web",
)


def block(beginning: str) -> str:
    """The guide's commands that begin so."""
    (found,) = [
        text
        for text in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
        if text.startswith(beginning)
    ]
    return found


def unit(name: str, key: str) -> str:
    """A setting of a shipped unit."""
    text = (ROOT / "packaging" / "systemd" / f"{name}.service").read_text()
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)[0]


def words(host: HostOfAccounts, name: str) -> list[str]:
    """Words before a command that is to run as a shipped unit runs it."""
    user, group = unit(name, "User"), unit(name, "Group")
    become = ["setpriv", f"--reuid={user}", f"--regid={group}", "--init-groups"]
    limits = [
        "sh",
        "-c",
        f'umask {unit(name, "UMask")}; cd /var/lib/provisioner && exec "$@"',
        "as",
    ]
    return [*host.words(), "env", f"MARK=secret of {name}", "HOME=/nonexistent", *become, *limits]


def provisioner(host: HostOfAccounts, name: str, *verb: str) -> subprocess.Popen[str]:
    command = [*words(host, name), sys.executable, "-m", "provisioner.cli", *verb, "-c", CONFIG]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def host() -> Iterator[HostOfAccounts]:
    """A host on which the guide's commands have run."""
    for tool in ("systemd-sysusers", "systemd-tmpfiles"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} on this host")
    with tempfile.TemporaryDirectory(prefix="installed-") as name:
        place = Path(name)
        place.chmod(0o755)
        with host_of_accounts(place) as host:
            (place / "controller.token").write_text("token of the controller\n")
            (place / "drones.key").write_text("signing key\n")
            host.run(AS_THE_PACKAGE, cwd=ROOT)
            host.run(block("cd /etc/provisioner\n"))
            host.run(block("sudo install -m 400 -o provisioner controller.token"), cwd=place)
            shared = block("cd /usr/share/gpu-drone-provisioner\n")
            host.run(shared.replace("/usr/share/gpu-drone-provisioner", "/etc/provisioner/shared"))
            yield host


def seen(host: HostOfAccounts, account: str) -> dict[str, object]:
    """Return what a hostile process of an account could read."""
    become = ["setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups"]
    command = [*host.words(), *become, sys.executable, "-", *PLACES]
    done = subprocess.run(command, input=SPY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    assert found["account"] == account
    return found


def test_neither_a_job_nor_the_web_service_reads_a_secret_of_the_controller(
    host: HostOfAccounts,
) -> None:
    checked = subprocess.run(
        [
            *words(host, "provisioner"),
            sys.executable,
            "-m",
            "provisioner.cli",
            "check",
            "-c",
            CONFIG,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "every job" not in checked.stdout, checked.stdout
    with provisioner(host, "provisioner", "run") as controller:
        try:
            record = host.place / "lib" / "provisioner" / "provisioner.db"
            until(record.exists, 30, what="the controller has a record")
            with provisioner(host, "provisioner-web", "serve") as web:
                try:
                    until(record.with_name("web.sock").exists, 30, what="the web service listens")
                    time.sleep(1)
                    job = seen(host, "gpu-drones")
                    assert (
                        job["files"] == job["sockets"] == job["processes"] == job["tokens"] == []
                    ), job
                    service = seen(host, "provisioner-web")
                    read = [str(path) for path in service["files"]]  # type: ignore[attr-defined]
                    assert "/var/lib/provisioner/provisioner.db" in read, "it reads the record"
                    assert CONFIG in read
                    assert (
                        not [path for path in read if "tokens" in path]
                        and service["processes"] == []
                    )
                    assert controller.poll() is None and web.poll() is None
                finally:
                    web.terminate()
        finally:
            controller.terminate()


@pytest.mark.parametrize("user", ["root", "provisioner"])
def test_check_tells_root_what_it_tells_the_service(host: HostOfAccounts, user: str) -> None:
    host.run("usermod --append --groups provisioner gpu-drones")
    command = [sys.executable, "-m", "provisioner.cli", "check", "-c", CONFIG]
    words_before = words(host, "provisioner") if user == "provisioner" else host.words()
    checked = subprocess.run([*words_before, *command], capture_output=True, text=True, timeout=60)
    assert (
        checked.returncode == 3
        and "gpu-drones, which can read /var/lib/provisioner/" in checked.stdout
    )


def test_jobs_of_one_account_can_read_each_other(host: HostOfAccounts) -> None:
    """The limit that the page about security tells: it is the account that separates."""
    other = "cd /var/lib/gpu-drones && umask 077 && echo private >drone-of-bob && exec sleep 60"
    become = ["setpriv", "--reuid=gpu-drones", "--regid=gpu-drones", "--init-groups"]
    host.run("chmod 777 /var/lib/gpu-drones")
    with subprocess.Popen([*host.words(), "env", "MARK=of bob", *become, "sh", "-c", other]) as job:
        try:
            until(
                (host.place / "lib/gpu-drones/drone-of-bob").exists,
                30,
                what="a job has written a file",
            )
            look = f"cat /var/lib/gpu-drones/drone-of-bob; tr '\\0' '\\n' </proc/{job.pid}/environ"
            done = subprocess.run(
                [*host.words(), *become, "sh", "-c", look],
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert "private" in done.stdout and "MARK=of bob" in done.stdout, done.stderr
        finally:
            job.terminate()
