"""A real OpenSSH server for a test: a plain process on loopback with a directory of its own, not root.

nss_wrapper gives it an account ``drone`` whose home is in that directory and whose shell is
/bin/sh.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adapters.shared.commands.settings import SshSettings
from tests.labs.htcondor import (
    account,
    children_of,
    end,
    lab_directory,
    living_in,
    until,
)
from tests.labs.ports import free_port

USER = "drone"

CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {root}/host_key
PidFile none
AuthorizedKeysFile {root}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
# the directories above are /tmp, which is everybody's
StrictModes no
UseDNS no
LogLevel VERBOSE
# the default allows ten connections at a time that are not yet logged in
{more}
"""


def fetched() -> Path:
    """The unpacked server, from the cache or from this host's package mirror (seconds)."""
    script = Path(__file__).with_name("get-sshd.sh")
    done = subprocess.run([str(script)], text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, f"no OpenSSH server:\n{done.stderr}"
    return Path(done.stdout.strip())


def key_pair(file: Path, passphrase: str = "") -> str:
    """Write a key pair to ``file`` and ``file.pub``; the public line."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(file)]
    subprocess.run(command, check=True, timeout=30, stdin=subprocess.DEVNULL)
    return file.with_suffix(".pub").read_text().strip()


class Sshd:
    """One server; ``settings()`` lets us in by key."""

    def __init__(
        self, root: Path, prefix: Path, *, config: str = "", key_options: str = ""
    ) -> None:
        self.root, self._prefix, self.port = root, prefix, free_port()
        self.account = account()
        self.process: subprocess.Popen[bytes] | None = None
        self.home = root / "home"
        self.home.mkdir()
        host_key = key_pair(root / "host_key")
        self.authorize(key_pair(root / "id"), key_options)
        self.known_hosts = root / "known_hosts"
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {host_key}\n")
        (root / "sshd_config").write_text(CONFIG.format(port=self.port, root=root, more=config))
        uid, gid = self.account.uid, self.account.gid
        (root / "passwd").write_text(f"{USER}:x:{uid}:{gid}::{self.home}:/bin/sh\n")
        (root / "group").write_text(f"{USER}:x:{gid}:\n")
        self.account.give(root)

    def authorize(self, public_key: str, options: str = "") -> None:
        (self.root / "authorized_keys").write_text(f"{options} {public_key}\n".lstrip())

    def start(self) -> Sshd:
        library = self._prefix / "lib-sshd"
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(self._prefix / "usr/sbin/sshd"),
                    "-D",
                    "-e",
                    "-f",
                    str(self.root / "sshd_config"),
                ],
                env={
                    "PATH": "/usr/bin:/bin",
                    "HOME": str(self.home),
                    "LD_LIBRARY_PATH": str(library),
                    "LD_PRELOAD": str(library / "libnss_wrapper.so"),
                    "NSS_WRAPPER_PASSWD": str(self.root / "passwd"),
                    "NSS_WRAPPER_GROUP": str(self.root / "group"),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.account.run,
            )
        until(self._up, 20, what="sshd listens", every_s=0.02)
        return self

    def _up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
            return probe.recv(8).startswith(b"SSH-2.0")

    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")

    def logins(self) -> int:
        return len(set(re.findall(r"Accepted publickey for \S+ from \S+ port \d+", self.log())))

    def cut(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Kill the processes that serve connections (SIGSTOP: leave them hanging), not the one that listens."""
        for pid in self._servers():
            with suppress(ProcessLookupError):  # it has ended since we looked
                os.kill(pid, sig)

    def _servers(self) -> list[int]:
        assert self.process is not None
        first = list(children_of(self.process.pid))
        return [
            *first,
            *(pid for each in first for pid, name in children_of(each).items() if "sshd" in name),
        ]

    def sleepers(self) -> list[str]:
        return [command for command in living_in(self.home).values() if "sleep" in command]

    def stop(self) -> None:
        if self.process is not None:
            self.cut(signal.SIGCONT)
            self.cut()
            end(self.process, signal.SIGTERM, 25)
            self.process = None

    def settings(self, **more: object) -> SshSettings:
        where = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": USER,
            "known_hosts": self.known_hosts,
        }
        how = {"key": self.root / "id", "retry": "100ms", "retry_at_most": "400ms"}
        return SshSettings.model_validate({**where, **how, **more})


@contextmanager
def running_sshd(prefix: Path, config: str = "", key_options: str = "") -> Iterator[Sshd]:
    """A server of a test's own. Leaving stops it, and fails if any process below its directory is left."""
    with lab_directory("sshd") as root:
        server = Sshd(root, prefix, config=config, key_options=key_options)
        try:
            yield server.start()
        except BaseException:
            print(server.log(), file=sys.stderr)
            raise
        finally:
            server.stop()
