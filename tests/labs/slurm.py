"""A real Slurm cluster for a test: all daemons of it in namespaces of their own on this host, on loopback.

Needs root. ``python -m tests.labs.slurm [SUITE]`` brings one up to play with.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGTERM, Signals
from typing import Any

import asyncssh

from tests.labs.htcondor import (
    LabError,
    children_of,
    fetched,
    kill,
    lab_directory,
    launch,
    until,
)
from tests.labs.ports import free_port

HERE = Path(__file__).parent
ACCOUNTS: Mapping[str, str] = {"drone": "lab", "owner": "group"}
"""Who submits jobs, and the account that is charged. ``root`` may do everything."""
UIDS: Mapping[str, int] = {"root": 0, "drone": 2001, "owner": 2002, "slurm": 64030}
TOOLS = (
    "squeue",
    "sbatch",
    "scancel",
    "sinfo",
    "scontrol",
    "sacct",
    "sacctmgr",
    "srun",
    "sprio",
    "sshare",
)

SIMULATED: Mapping[str, int] = {"a100": 4, "h100": 2}
"""GPUs that a drone finds on a node of this type, by its number in ``condor_gpu_discovery
-simulate``: an A100-SXM4-40GB of 47661 MiB; for an H100, which it does not know, a Tesla
V100-PCIE-16GB of 24220 MiB."""


class NoNamespaces(LabError):
    """This process may not make namespaces: a lab cannot be started here."""


@dataclass(frozen=True, slots=True)
class Slurm:
    """A root directory with the programs of one version."""

    root: Path
    version: tuple[int, int]
    """``(24, 11)``."""

    @classmethod
    def fetched(cls, suite: str) -> Slurm:
        """From the cache, or from this host's package mirror. NoNamespaces without root, else
        LabError with what is missing."""
        if os.geteuid() != 0:
            raise NoNamespaces("a Slurm cluster needs namespaces, and they need root")
        root = fetched("get-slurm.sh", suite)
        said = subprocess.check_output(["chroot", str(root), "slurmctld", "-V"], text=True).split()[
            -1
        ]
        year, month = said.split(".")[:2]
        return cls(root, (int(year), int(month)))


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is special about a cluster."""

    a100: int = 2
    """Nodes with 4 A100 each, ``hkn0801`` and on."""
    h100: int = 1
    """Nodes with 4 H100 each, ``hkn0901`` and on."""
    accounting: bool = True
    """Whether there is slurmdbd."""
    rest: bool = True
    ssh: bool = True
    min_job_age_s: int = 300
    slurmd_timeout_s: int = 30
    max_submit_jobs: int | None = None
    """Of the account's user ``drone``; more are refused."""
    gres_types: str = "gpu"
    gres: str = "gpu:{gpu}:4"
    """Gres of a node with GPUs of the type ``gpu``."""
    gres_conf: str = "NodeName={name} Name=gpu Type={gpu} File=/dev/lab/gpu[0-3]\n"
    """Its lines of gres.conf."""
    extra: str = ""
    """Further lines of slurm.conf."""
    binds: Sequence[Path] = ()
    """Directories of this host that are the same inside."""

    @property
    def nodes(self) -> dict[str, str]:
        """Type of the GPUs by node."""
        return {
            **{f"hkn{801 + i:04}": "a100" for i in range(self.a100)},
            **{f"hkn{901 + i:04}": "h100" for i in range(self.h100)},
        }


SLURM_CONF = """\
ClusterName=horeka
SlurmctldHost=login(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=slurm
SlurmdUser=root
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
CredType=cred/munge
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={etc}/jwt.key
StateSaveLocation=/var/spool/slurm/state
SlurmdSpoolDir=/var/spool/slurm/%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd-%n.pid
SlurmctldLogFile={log}/slurmctld.log
SlurmdLogFile={log}/slurmd-%n.log
SlurmctldDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
# nodes are what is declared below, whatever this host has
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes={gres_types}
DefMemPerCPU=1024
PriorityType=priority/multifactor
SchedulerType=sched/backfill
# quick
SchedulerParameters=bf_interval=1,bf_resolution=60,batch_sched_delay=1,sched_interval=1,sched_min_interval=1
MinJobAge={min_job_age_s}
KillWait=5
SlurmctldTimeout=30
SlurmdTimeout={slurmd_timeout_s}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""

ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={database}
AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:h100
AccountingStorageEnforce=associations,limits,qos
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={etc}/jwt.key
DbdHost=login
DbdAddr=127.0.0.1
DbdPort={database}
CommunicationParameters=NoInAddrAny
SlurmUser=slurm
LogFile={log}/slurmdbd.log
PidFile=/run/slurm/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
"""

NODE = (
    "NodeName={name} NodeAddr=127.0.0.1 NodeHostname=login Port={port}"
    " Sockets=2 CoresPerSocket=38 ThreadsPerCore=2 RealMemory=512000 Gres={gres}\n"
)

PARTITION = "PartitionName={name} Nodes={nodes} MaxTime={longest} DefaultTime=10 State=UP {more}\n"
FIRST = "PriorityTier=10 PreemptMode=OFF"
PREEMPTED = "PriorityTier=1 GraceTime=6 PreemptMode=CANCEL"

SSHD_CONFIG = """\
Port {ssh}
ListenAddress 127.0.0.1
HostKey {etc}/host_key
PidFile /run/sshd/lab.pid
AuthorizedKeysFile {etc}/authorized_keys
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin no
AllowUsers drone owner
MaxStartups 100
Subsystem sftp internal-sftp
LogLevel VERBOSE
"""

TASK_PROLOG = """\
#!/bin/sh
case $SLURMD_NODENAME in
{cases}
esac
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A job, or one task of an array, as squeue tells it."""

    id: str
    """``12``, or ``12_3`` for a task of an array."""
    name: str
    state: str
    """``PENDING``, ``RUNNING``, ..."""
    reason: str
    node: str
    user: str

    @property
    def alive(self) -> bool:
        """Return whether the job waits or runs."""
        return self.state in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED")


class SlurmLab:
    """One cluster. Everything of it, and of its jobs, ends when ``stop`` is called or this process ends.

    ``dir`` is its directory, the same inside and outside; whoever wants to hand a job a file puts
    it into ``shared``.
    """

    def __init__(self, root: Path, slurm: Slurm, setup: Setup) -> None:
        self.slurm, self.setup, self.root = slurm, setup, root
        self.dir, self.etc, self.logs = root / "lab", root / "lab/etc", root / "lab/log"
        self.shared = root / "lab/shared"
        self.tools = root / "tools"
        """Programs squeue, sbatch and so on, for this host: each runs its namesake in the cluster as ``drone``."""
        self.controller_port, self.database_port, self.rest_port, self.ssh_port = (
            free_port() for _ in range(4)
        )
        self.rest_url = f"http://127.0.0.1:{self.rest_port}"
        self.rest_socket = self.dir / "drone/slurmrestd.sock"
        """slurmrestd of ``drone``'s own: callable by ``drone`` inside, or by ssh's forwarding."""
        self.key, self.known_hosts = root / "keys/drone", root / "keys/known_hosts"
        self.process: subprocess.Popen[bytes] | None = None
        self._init = 0
        self.namespace = ""
        """Of its processes, as ``/proc/<pid>/ns/pid`` names it."""

    # ----------------------------------------------------------------------------------------------
    # configuration

    def _write(self) -> None:
        for directory in (
            self.dir,
            self.etc,
            self.logs,
            self.shared,
            self.dir / "drone",
            self.tools,
            self.key.parent,
        ):
            directory.mkdir()
            directory.chmod(0o755)
        self.shared.chmod(0o1777)
        os.chown(self.dir / "drone", UIDS["drone"], UIDS["drone"])
        os.chown(self.logs, UIDS["slurm"], UIDS["slurm"])
        setup = self.setup
        told = {
            **vars(setup),
            "etc": self.etc,
            "log": self.logs,
            "controller": self.controller_port,
            "database": self.database_port,
            "ssh": self.ssh_port,
        }
        conf = SLURM_CONF.format(**told)
        if setup.accounting:
            conf += ACCOUNTING.format(**told)
            self._file("etc/slurmdbd.conf", SLURMDBD_CONF.format(**told), owner="slurm")
        elif self.slurm.version < (23, 2):
            conf += "AccountingStorageType=accounting_storage/none\n"
        cases = "".join(
            f"    {name}) echo export DRONE_GPU_SIMULATE={SIMULATED[gpu]},4 ;;\n"
            for name, gpu in setup.nodes.items()
        )
        conf += f"TaskProlog={self._file('etc/task_prolog', TASK_PROLOG.format(cases=cases), mode=0o755)}\n"
        conf += "".join(
            NODE.format(name=name, port=free_port(), gres=setup.gres.format(gpu=gpu))
            for name, gpu in setup.nodes.items()
        )
        self._file("etc/slurm.conf", conf + self._partitions() + setup.extra)
        self._file(
            "etc/gres.conf",
            "".join(
                setup.gres_conf.format(name=name, gpu=gpu) for name, gpu in setup.nodes.items()
            ),
        )
        self._file(
            "etc/cgroup.conf", "CgroupPlugin=disabled\n" if self.slurm.version > (22, 5) else ""
        )
        self._file("etc/jwt.key", secrets.token_bytes(32), owner="slurm")
        self._file("etc/sshd_config", SSHD_CONFIG.format(**told))
        # Without slurmdbd, slurmrestd must be told to leave that half of itself out.
        only = "-s openapi/slurmctld" if self.slurm.version > (22, 5) else "-s openapi/v0.0.38"
        options = "" if setup.accounting else only
        self._file("settings", f"REST_OPTIONS='{options}'\nREST_PORT={self.rest_port}\n")
        shutil.copy(HERE / "slurm_scripts/daemon.sh", self.dir)
        self._make_keys()

    def _file(self, name: str, content: str | bytes, *, mode: int = 0o644, owner: str = "") -> Path:
        file = self.dir / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(0o600 if owner else mode)
        if owner:
            os.chown(file, UIDS[owner], UIDS[owner])
        return file

    def _partitions(self) -> str:
        nodes = self.setup.nodes
        by_type = {
            gpu: ",".join(name for name, each in nodes.items() if each == gpu)
            for gpu in ("a100", "h100")
        }
        rows = [
            ("accelerated", by_type["a100"], "2-00:00:00", FIRST + " Default=YES"),
            ("accelerated-h100", by_type["h100"], "2-00:00:00", FIRST),
            (
                "dev",
                ",".join(each for each in ("hkn0801", "hkn0901") if each in nodes),
                "1:00:00",
                FIRST,
            ),
            ("backfill", ",".join(nodes), "2-00:00:00", PREEMPTED),
        ]
        return "".join(
            PARTITION.format(name=name, nodes=where, longest=longest, more=more)
            for name, where, longest, more in rows
            if where
        )

    def _make_keys(self) -> None:
        ours, hosts = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        for key, file in ((ours, self.key), (hosts, self.etc / "host_key")):
            file.touch(mode=0o600)
            file.write_bytes(key.export_private_key())
        self._file("etc/authorized_keys", ours.export_public_key())
        self.known_hosts.write_text(
            f"[127.0.0.1]:{self.ssh_port} {hosts.export_public_key().decode()}"
        )

    # ----------------------------------------------------------------------------------------------------
    # commands

    def _inside(self, user: str, *, dies: bool = True) -> list[str]:
        """What to put before a command so that it runs in the cluster as ``user``."""
        home = "/root" if user == "root" else f"/home/{user}"
        person = (
            []
            if user == "root"
            else ["--reuid", user, "--regid", user, "--clear-groups", "--inh-caps=-all"]
        )
        with_us = ["--pdeathsig", "KILL"] if dies else []
        return [
            *("nsenter", "-t", str(self._init), "-m", "-p", "-u", "-i", "-r", "--"),
            *("setpriv", *with_us, *person) * bool(with_us or person),
            *(
                "env",
                "-C",
                home,
                f"HOME={home}",
                f"USER={user}",
                f"LOGNAME={user}",
                f"PATH={_PATH}",
            ),
        ]

    def done(
        self, *argv: str, user: str = "drone", stdin: str = "", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """A command in the cluster, whatever its exit status."""
        return subprocess.run(
            [*self._inside(user), *argv],
            env={"PATH": _PATH, "LANG": "C.UTF-8"},
            input=stdin,
            text=True,
            errors="replace",
            capture_output=True,
            timeout=timeout_s,
        )

    def run(self, *argv: str, user: str = "drone", stdin: str = "", timeout_s: float = 60) -> str:
        """Stdout of a command in the cluster; LabError if it fails."""
        done = self.done(*argv, user=user, stdin=stdin, timeout_s=timeout_s)
        if done.returncode != 0:
            raise LabError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def sbatch(self, text: str, *options: str, user: str = "drone") -> int:
        """Submit a batch script; the number of its job."""
        return int(
            self.run("sbatch", "--parsable", *options, user=user, stdin=text).partition(";")[0]
        )

    def jobs(self, *options: str) -> list[Job]:
        """All that squeue knows of, ended ones as well, array tasks one by one. ``options`` choose."""
        shape = "%i\t%j\t%T\t%r\t%N\t%u"
        text = self.run("squeue", "-h", "-r", "-t", "all", "-o", shape, *options, user="root")
        return [Job(*line.split("\t")) for line in text.splitlines()]

    def job(self, number: int) -> Job:
        """One of them, LabError if it is forgotten."""
        return next(iter(self.jobs("-j", str(number))))

    def reaches(self, number: int, *states: str, within_s: float = 60) -> Job:
        """Wait until a job is in one of the states."""

        def there() -> Job | None:
            job = self.job(number)
            return job if job.state in states else None

        return until(there, within_s, what=f"job {number} is {' or '.join(states)}")

    def empty(self, within_s: float = 60) -> None:
        """Cancel all jobs, and wait until nothing of them runs."""
        self.run("scancel", "--state=PENDING", user="root")
        self.run("scancel", "--signal=KILL", "--full", "--state=RUNNING", user="root")
        for state in ("RUNNING", "SUSPENDED"):
            self.run("scancel", f"--state={state}", user="root")
        until(lambda: not self.run("squeue", "-h", user="root"), within_s, what="an empty queue")

    def token(self, user: str = "drone", lifespan_s: int = 3600) -> str:
        """A JWT for slurmrestd."""
        said = self.run(
            "scontrol", "token", f"username={user}", f"lifespan={lifespan_s}", user="root"
        )
        return said.strip().removeprefix("SLURM_JWT=")

    def nodes(self) -> dict[str, str]:
        """State of each node, ``idle``, ``mix``, ``down*``, ..., as sinfo shortens it."""
        text = self.run("sinfo", "-h", "-N", "-o", "%N %t", user="root")
        return dict(line.split() for line in text.splitlines())

    # -----------------------------------------------------------------------------------------------------
    # daemons

    @property
    def daemons(self) -> tuple[str, ...]:
        """Names of all daemons there are, in the order in which they start."""
        setup = self.setup
        return (
            "munged",
            *(("mariadbd", "slurmdbd") if setup.accounting else ()),
            "slurmctld",
            *(f"slurmd-{node}" for node in setup.nodes),
            *(("slurmrestd", "slurmrestd-drone") if setup.rest else ()),
            *(("sshd",) if setup.ssh else ()),
        )

    def processes(self) -> dict[int, str]:
        """Every process of the cluster: pid on this host -> command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):  # it may have gone
                    if os.readlink(entry / "ns/pid") == self.namespace:
                        command = (
                            (entry / "cmdline")
                            .read_bytes()
                            .replace(b"\0", b" ")
                            .decode(errors="replace")
                        )
                        found[int(entry.name)] = command.strip()
        return found

    def pid(self, daemon: str) -> int:
        """Of one daemon, on this host. LabError if it does not run."""
        name, _, of = daemon.partition("-")
        sign = {
            "slurmd": f"-N {of}",
            "sshd": "[listener]",
            "slurmrestd": f"unix:{self.dir}" if of else "127.0.0.1:",
        }
        for pid, called in self.processes().items():
            with suppress(OSError):
                if (
                    Path(f"/proc/{pid}/comm").read_text().strip() == name
                    and sign.get(name, "") in called
                ):
                    return pid
        raise LabError(f"no {daemon} runs")

    def signal(self, daemon: str, sig: Signals) -> None:
        """Send a signal to one daemon of ``daemons``; SIGSTOP and SIGCONT make one that hangs for a while."""
        os.kill(self.pid(daemon), sig)

    def stop_daemon(self, daemon: str, sig: Signals = SIGTERM) -> None:
        """End one, and wait until it has gone. With SIGKILL slurmctld forgets its last seconds."""
        pid = self.pid(daemon)
        os.kill(pid, SIGCONT)
        os.kill(pid, sig)
        until(lambda: pid not in self.processes(), 30, what=f"{daemon} has gone", every_s=0.05)

    def start_daemon(self, daemon: str) -> None:
        """Start one, and wait until it answers."""
        self._launch(daemon)
        self._wait_for(daemon)

    def restart(self, daemon: str, sig: Signals = SIGTERM) -> None:
        """End one, if it runs, and start it again; slurmctld then knows its nodes again."""
        with suppress(LabError):
            self.stop_daemon(daemon, sig)
        self.start_daemon(daemon)
        if daemon == "slurmctld":
            until(
                lambda: "unk" not in "".join(self.nodes().values()),
                60,
                what="all nodes have registered",
            )

    def _launch(self, daemon: str) -> None:
        subprocess.run(
            [
                *self._inside("root", dies=False),
                "setsid",
                "-f",
                str(self.dir / "daemon.sh"),
                daemon,
                str(self.dir),
            ],
            env={"PATH": _PATH, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=30,
        )

    def _wait_for(self, daemon: str, within_s: float = 90) -> None:
        until(lambda: self._answers(daemon), within_s, what=f"{daemon} answers", every_s=0.05)

    def _answers(self, daemon: str) -> bool:
        self.pid(daemon)
        ask = lambda *argv: self.done(*argv, user="root", timeout_s=30)  # noqa: E731
        match daemon.partition("-")[::2]:
            case "munged", _:
                return ask("munge", "-n").returncode == 0
            case "mariadbd", _:
                return (
                    ask("mariadb-admin", "--socket=/run/mysqld/mysqld.sock", "ping").returncode == 0
                )
            case "slurmdbd", _:
                return ask("sacctmgr", "-n", "-i", "show", "cluster").returncode == 0
            case "slurmctld", _:
                return " UP" in ask("scontrol", "ping").stdout
            case "slurmd", node:
                state = self.nodes().get(node, "")
                return (
                    bool(state)
                    and not state.endswith("*")
                    and state.rstrip("~#%$@+^-!") not in ("unk", "down")
                )
            case "slurmrestd", "drone":
                with socket.socket(socket.AF_UNIX) as probe:
                    return probe.connect_ex(str(self.rest_socket)) == 0
            case name, _:
                with socket.socket() as probe:
                    port = self.ssh_port if name == "sshd" else self.rest_port
                    return probe.connect_ex(("127.0.0.1", port)) == 0

    # ---------------------------------------------------------------------------------------------------------
    # life

    def start(self) -> SlurmLab:
        """Bring everything up and wait until all nodes are idle. The cluster ends with the thread that calls this."""
        self._write()
        # HTCondor's programs are beside Slurm's
        binds = (self.slurm.root.parent, *self.setup.binds)
        # It ends with us, and with it process 1 inside, and with that everything.
        begin = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--fork",
        ]
        enter = [HERE / "slurm_scripts/enter.sh", self.slurm.root, self.root, *binds]
        command = (*begin, "--kill-child=KILL", "bash", *enter)
        self.process = launch(command, self.root / "enter.out", env=os.environ, cwd=Path.cwd())
        until(self._entered, 30, what="namespaces are made", every_s=0.02)
        self._write_tools()
        try:
            self._start_daemons()
        except AssertionError as error:
            raise LabError(
                f"Slurm {self.slurm.version} does not come up: {error}\n{self.story()}"
            ) from None
        return self

    def _entered(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"it ended at once: {(self.root / 'enter.out').read_text()}")
        if not (self.dir / "entered").exists():
            return False
        (self._init,) = children_of(self.process.pid)
        self.namespace = os.readlink(f"/proc/{self._init}/ns/pid")
        return True

    def _start_daemons(self) -> None:
        self._launch("munged")
        if self.setup.accounting:
            self._launch("mariadbd")
        self._wait_for("munged")
        if self.setup.accounting:
            self._wait_for("mariadbd")
            self.start_daemon("slurmdbd")
            self._add_accounts()
        self.start_daemon("slurmctld")
        rest = self.daemons[self.daemons.index("slurmctld") + 1 :]
        for daemon in rest:
            self._launch(daemon)
        for daemon in rest:
            self._wait_for(daemon)

    def _add_accounts(self) -> None:
        lines = ["sacctmgr -i add cluster horeka"]
        for user, account in ACCOUNTS.items():
            lines += [
                f"sacctmgr -i add account {account}",
                f"sacctmgr -i add user {user} account={account}",
            ]
        if self.setup.max_submit_jobs is not None:
            lines.append(
                f"sacctmgr -i modify user drone set MaxSubmitJobs={self.setup.max_submit_jobs}"
            )
        self.run("sh", "-e", user="root", stdin="\n".join(lines))

    def _write_tools(self) -> None:
        for name in TOOLS:
            file = self.tools / name
            file.write_text(f'#!/bin/sh\nexec {shlex.join(self._inside("drone"))} {name} "$@"\n')
            file.chmod(0o755)

    def stop(self) -> None:
        """End it, with all that runs in it. What is left then fails the test."""
        if self.process is None:
            return
        ours = self.processes() if self.namespace else {}
        # The kernel ends all others with the first process inside, and only then does its parent
        # see that one gone.
        kill(self._init or self.process.pid)
        self.process.wait(60)
        # The number of the namespace may be used again by then, by another lab.
        left = (
            {pid: command for pid, command in self.processes().items() if ours.get(pid) == command}
            if ours
            else {}
        )
        assert not left, f"processes left behind: {left}"
        assert str(self.root) not in Path("/proc/self/mounts").read_text()

    # -------------------------------------------------------------------------------------------------------
    # traces

    def inside(self, path: str) -> Path:
        """A file of the cluster's own, ``/tmp/x``, as it is reached from here."""
        return Path(f"/proc/{self._init}/root{path}")

    def log(self, name: str, lines: int = 30) -> str:
        """The end of a daemon's log."""
        for file in (self.logs / f"{name}.log", self.logs / f"{name}.out"):
            if file.exists() and file.stat().st_size:
                return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])
        return f"(nothing of {name})"

    def story(self) -> str:
        """Everything there is to tell, for a failing test."""
        told = [f"--- {each}\n{self.log(each)}" for each in self.daemons]
        with suppress(LabError, OSError, subprocess.SubprocessError):
            told.append("--- jobs\n" + "\n".join(map(str, self.jobs())))
            told.append(f"--- nodes\n{self.nodes()}")
        return "\n".join(told)


_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@contextmanager
def running_slurm(slurm: Slurm, **knobs: Any) -> Iterator[SlurmLab]:
    """A cluster as ``Setup(**knobs)`` says. Leaving ends it, and fails if any process of it is left."""
    with lab_directory("slurm") as root:
        lab = SlurmLab(root, slurm, Setup(**knobs))
        try:
            yield lab.start()
        finally:
            lab.stop()


NOTED = """\
#!/bin/sh
# As {tool}, and a line about each call.
out=$(mktemp -p {directory}) || exit 70
trap 'rm -f "$out"' EXIT
{tool} "$@" >"$out"
code=$?
echo "{name} $(wc -c <"$out") $*" >>{calls}
cat "$out"
exit $code
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one tool that came to its end."""

    tool: str
    answer: int
    """Bytes."""
    words: tuple[str, ...]
    """Its arguments, cut at blanks."""

    @property
    def tasks(self) -> int:
        """Of an ``sbatch``: how many jobs it asks for."""
        arrays = [
            word.removeprefix("--array=") for word in self.words if word.startswith("--array=")
        ]
        spans = [part.partition("-") for array in arrays for part in array.split(",")]
        return sum(int(last or first) - int(first) + 1 for first, _, last in spans) if arrays else 1


class CountedTools:
    """A directory of such tools, for a site's option ``tools: {bin: ...}``. It goes with the cluster's."""

    def __init__(self, lab: SlurmLab) -> None:
        self.directory = lab.root / "counted"
        self.directory.mkdir()
        self._calls = self.directory / "calls"
        self._calls.touch()
        for name in TOOLS:
            file = self.directory / name
            script = NOTED.format(
                tool=lab.tools / name, name=name, directory=self.directory, calls=self._calls
            )
            file.write_text(script)
            file.chmod(0o755)

    def calls(self, after: int = 0) -> list[Call]:
        """All of them, without the first ``after``."""
        lines = self._calls.read_text(errors="replace").splitlines()[after:]
        rows = [line.split() for line in lines]
        return [Call(tool, int(answer), tuple(words)) for tool, answer, *words in rows]


def main() -> None:
    with running_slurm(Slurm.fetched(sys.argv[1] if len(sys.argv) > 1 else "trixie")) as lab:
        print(
            f"Slurm {lab.slurm.version} is up; ctrl-D ends it\n  tools      {lab.tools}\n  logs       {lab.logs}"
        )
        print(
            f"  slurmrestd {lab.rest_url} and {lab.rest_socket}\n  ssh        -p {lab.ssh_port} -i {lab.key}"
        )
        print(f"  root shell {shlex.join(lab._inside('root', dies=False))} bash", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
