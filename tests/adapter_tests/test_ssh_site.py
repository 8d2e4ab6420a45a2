"""The minimal adapter of docs/how-to/add-a-site.md passes the contract suite, against a real OpenSSH server."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from provisioner.adapter_tests import SiteContract, SiteWorld
from provisioner.model import DroneId, DroneType
from tests.labs.shell_drones import ShellDrones, unsupported
from tests.local.drones import end_all_tagged, tagged
from tests.shared_commands.sshd import USER, Sshd, fetched, running_sshd

FILE = Path(__file__).parents[2] / "docs/how-to/ssh_site.py"
SMALL = DroneType("far", "small", gpu_milli=1000, cpus=2, memory_mib=1024, disk_mib=10)
HUGE = DroneType("far", "huge", gpu_milli=9000, cpus=2, memory_mib=1024, disk_mib=10)
RUN = 'sh -c "$SSH_ORIGINAL_COMMAND"'


sys.path.append(str(FILE.parent))  # the file of the page is a module
ssh_site: Any = importlib.import_module(FILE.stem)


def launchers(drone_id: str) -> list[int]:
    """Return the processes of the drone's launchers: each is the leader of a session of its own."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if command.endswith(f"/{drone_id}/launcher\0".encode()) and os.getsid(pid) == pid:
                found.append(pid)
        except OSError:
            continue
    return found


class SshWorld(ShellDrones):
    """A host of four GPUs behind an OpenSSH server."""

    controller = f"kit{os.getpid()}"
    kind: DroneType = SMALL
    impossible: DroneType = HUGE
    grace_s = 1.0
    longest_wait_s = 40.0
    reports_free = False
    reports_exit_codes = True

    def __init__(self, server: Sshd, directory: Path) -> None:
        self.server = server
        self.root = server.home / "drones"
        self.ssh_config = directory / "ssh_config"
        self.ssh_config.write_text(
            f"Host far\n HostName 127.0.0.1\n Port {server.port}\n User {USER}\n IdentityFile {server.root}/id\n"
            f" IdentitiesOnly yes\n UserKnownHostsFile {server.known_hosts}\n"
        )

    def site(self, controller: str | None = None, **options: object) -> Any:
        values = {"host": "far", "ssh_config": str(self.ssh_config), "gpus": 4}
        config = ssh_site.SshSiteConfig.model_validate({**values, **options})
        return ssh_site.SshSite("far", config, [SMALL, HUGE], controller or self.controller)

    async def alive(self, drone_id: DroneId) -> int:
        return len(launchers(drone_id))

    async def anything_left(self, drone_id: DroneId) -> bool:
        return bool(tagged(drone_id))

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        self.server.stop()
        yield
        self.server.start()

    @asynccontextmanager
    async def forced(self, command: str) -> AsyncIterator[None]:
        """Run ``command`` instead of what the client asks for."""
        public_key = (self.server.root / "id.pub").read_text().strip()
        escaped = command.replace('"', '\\"')
        self.server.authorize(public_key, f'command="{escaped}"')
        try:
            yield
        finally:
            self.server.authorize(public_key)

    def lost_replies(self) -> AbstractAsyncContextManager[None]:
        return self.forced(f"{RUN} >/dev/null; kill -9 $PPID")

    def cut_listings(self) -> AbstractAsyncContextManager[None]:
        return self.forced(f"{RUN} | head -c 30")

    def refused_stops(self, status: int) -> AbstractAsyncContextManager[None]:
        return self.forced(f'case $SSH_ORIGINAL_COMMAND in *" stop "*) exit 1;; esac; {RUN}')

    @asynccontextmanager
    async def refused_starts(self) -> AsyncIterator[None]:
        """All GPUs are taken by a drone of another controller."""
        other = self.root / "other" / "other-1"
        other.mkdir(parents=True)
        (other / "gpus").write_text("0 1 2 3\n")
        # this may be the first test: nobody made the directory before
        self.server.account.give(self.root)
        try:
            yield
        finally:
            (other / "gpus").unlink()
            other.rmdir()

    pages = unsupported("a listing is one answer")

    def forgetful_site(self) -> Any:
        return self.site(retain_finished="0s")

    async def objects(self, drone_id: DroneId) -> Sequence[str]:
        return [str(each) for each in self.root.glob(f"*/{drone_id}")]


@pytest.fixture(scope="module")
def server() -> Iterator[Sshd]:
    if os.environ.get("PROVISIONER_NO_LIVE") and not os.environ.get("CI"):
        pytest.skip("PROVISIONER_NO_LIVE is set")
    with running_sshd(fetched()) as server:
        yield server


class TestSshSite(SiteContract):
    @pytest.fixture
    def world(self, server: Sshd, tmp_path: Path) -> Iterator[SiteWorld]:
        world = SshWorld(server, tmp_path)
        yield world
        end_all_tagged(world.controller)
        for directory in world.root.glob("*/*"):
            directory.rename(world.root / f".old-{directory.name}-{os.urandom(4).hex()}")


def test_the_example_is_short() -> None:
    assert len(FILE.read_text().splitlines()) <= 250
