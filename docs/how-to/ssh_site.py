"""A minimal site adapter: drones are processes on another host, started with the ``ssh`` program.

Each drone has a directory ``ROOT/CONTROLLER/DRONE_ID`` on that host. A launcher runs the drone
once, holds a lock while it runs, and writes down how it ended. The host's GPUs are given to one
drone at a time. Needs OpenSSH here, and a POSIX shell, GNU tar, grep and coreutils, and util-linux
(``flock``, ``setsid``) there.
"""

from __future__ import annotations

import asyncio
import io
import shlex
import tarfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from provisioner import drone
from provisioner.config.units import ConfigPath, Duration, PositiveDuration
from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OptionFinding,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import (
    DroneId,
    DroneType,
    EndKind,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    SiteView,
    StartOrder,
    StopOrder,
)

LAUNCHER = """\
cd "${0%/*}" && exec 9>lock && flock -w 5 9 || exit
[ -e stopped ] && exit
mkdir started 2>/dev/null || exit            # it has run before: one directory is one drone
( . ./env; cd work; exec setsid sh ../script ) </dev/null >log 2>&1 9>&- &
echo $! >pid
[ -e stopped ] && kill -9 $!                 # stopped before there was a process to stop
wait $!; code=$?
while pids=$(grep -lzx "PROVISIONER_DRONE_ID=${PWD##*/}" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); [ "$pids" ]
do kill -9 $pids 2>/dev/null; sleep 0.05; done
echo $code >exit.new && mv exit.new exit
"""

REMOTE = """\
set -u; umask 077
mkdir -p "$1/$2" && cd "$1" || exit
ours=$2 verb=$3; shift 3
lives() { ! flock -n "$1/lock" true; }
ended() { if [ -e "$1/started" ]; then ! lives "$1"; else [ -e "$1/stopped" ]; fi; }
end() {
    while { ! lives "$ours/$1" || kill -9 "$(cat "$ours/$1/pid")"; } 2>/dev/null
        pids=$(grep -lzx "PROVISIONER_DRONE_ID=$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); [ "$pids" ]
    do kill -9 $pids 2>/dev/null; sleep 0.05; done
}
case $verb in
list)
    for d in "$ours"/*/; do
        [ -e "$d/type" ] || continue
        state=pending; ended "$d" && state=ended || { [ -e "$d/started" ] && state=running; }
        kind=exited; [ -e "$d/stopped" ] && kind=stopped
        began=$(stat -c %Y "$d/started" || echo 0) over=$(stat -c %Y "$d/exit" "$d/stopped" "$d/started" | head -n 1)
        line="$(basename "$d") $(cat "$d/type") $state $began $kind ${over:-0} $(cat "$d/exit" || echo -)"
        [ -e "$d/type" ] && echo "$line"     # it may have been forgotten meanwhile
    done 2>/dev/null ;;
start)
    new=$(mktemp -d .new.XXXXXX) || exit
    trap 'rm -rf "$new"' EXIT
    tar -x -C "$new" || exit                 # fails if the connection was cut: nothing was done
    exec 8>lock && flock 8 || exit           # one start at a time
    if [ ! -e "$ours/$1" ]; then
        used=" $(for d in */*/; do ended "$d" || cat "$d/gpus"; done 2>/dev/null | tr '\\n' ' ') "
        free= count=0 n=0
        while [ $n -lt "$4" ] && [ $count -lt "$3" ]; do
            case $used in *" $n "*) ;; *) free="$free $n" count=$((count + 1)) ;; esac
            n=$((n + 1))
        done
        [ $count -ge "$3" ] || { echo full; echo end; exit; }
        echo "$2" >"$new/type"; echo $free >"$new/gpus"
        echo "export DRONE_DIR='$PWD/$ours/$1/work' CUDA_VISIBLE_DEVICES=$(echo $free | tr ' ' ,)" >>"$new/env"
        mv "$new" "$ours/$1" || exit
    fi
    if [ ! -e "$ours/$1/started" ]; then
        setsid sh "$PWD/$ours/$1/launcher" </dev/null >/dev/null 2>&1 8>&- &
    fi ;;
stop)
    if [ -e "$ours/$1" ] && ! ended "$ours/$1"; then
        : >"$ours/$1/stopped" || exit
        if [ "$2" = 1 ]; then end "$1"; else
            lives "$ours/$1" && kill "$(cat "$ours/$1/pid")" 2>/dev/null
            ( trap '' HUP; sleep "$(cat "$ours/$1/grace")"; end "$1" ) </dev/null >/dev/null 2>&1 &
        fi
    fi ;;
forget) for id; do ended "$ours/$id" && mv "$ours/$id" ".old.$id" && rm -rf ".old.$id"; done ;;
esac
echo end
"""


class SshSiteConfig(BaseModel):
    """Options of the site."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(
        pattern=r"^[A-Za-z0-9._:@][A-Za-z0-9._:@-]*$", description="Host, as `ssh` accepts it."
    )
    ssh_config: ConfigPath | None = Field(
        default=None, description="Configuration file of `ssh`: user, port, key."
    )
    root: str = Field(
        default="drones",
        pattern=r"^[A-Za-z0-9._/-]+$",
        description="Directory of the drones there.",
    )
    gpus: int = Field(ge=0, le=64, description="Number of GPUs of the host.", examples=[4])
    deadline: PositiveDuration = Field(default=20.0, description="Longest wait for one command.")
    retain_finished: Duration = Field(
        default=3600.0, description="How long finished drones are listed."
    )

    def type_conflicts(self, types: Sequence[DroneType]) -> Iterator[OptionFinding]:
        """Yield drone types that this host cannot run."""
        for each in types:
            if each.gpu_milli % 1000 or each.gpu_milli > self.gpus * 1000:
                yield (
                    ("types", each.name, "gpus"),
                    f"write a whole number of GPUs, at most {self.gpus}",
                )


class SshSite:
    """Drones as processes on one host."""

    Config = SshSiteConfig

    def __init__(
        self, name: str, config: SshSiteConfig, types: Sequence[DroneType], controller: str
    ) -> None:
        self._name, self._config, self._controller = name, config, controller
        self._polls = 0
        self._cleanup: asyncio.Task[None] | None = None
        self._sessions = asyncio.Semaphore(4)

    async def __aenter__(self) -> Self:
        return self  # each command connects by itself

    async def __aexit__(self, *exc: object) -> None:
        if self._cleanup is not None:
            self._cleanup.cancel()
            await asyncio.wait([self._cleanup])

    async def poll(self) -> SiteView:
        """List the drones of this controller, finished ones too."""
        lines = await self._run("list", writes=False)
        drones = {each.drone_id: each for each in map(_remote_drone, lines)}
        view = SiteView(self._name, time.time(), drones)
        self._polls += 1
        # `check --live` polls once
        if self._polls > 1 and (self._cleanup is None or self._cleanup.done()):
            self._cleanup = asyncio.create_task(self._forget_old(view))
        return view

    async def _forget_old(self, view: SiteView) -> None:
        oldest = view.taken_at - self._config.retain_finished
        old = [
            drone_id
            for drone_id, each in view.drones.items()
            if each.end is not None and each.end.at <= oldest
        ]
        with suppress(AdapterError):  # the next poll tries again
            await self._run("forget", *old, writes=True)

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        """Start drones; an order for a drone that is there already starts nothing."""
        return await asyncio.gather(*(self._result(self._start, order) for order in orders))

    async def _start(self, order: StartOrder) -> None:
        gpus = order.type.gpu_milli // 1000
        lines = await self._run(
            "start",
            order.drone_id,
            order.type.name,
            gpus,
            self._config.gpus,
            payload=_payload(order),
            writes=True,
        )
        if lines == ["full"]:
            kind = FaultKind.CONFIG if gpus > self._config.gpus else FaultKind.CAPACITY
            raise RejectedError(f"{self._config.host} has no {gpus} free GPUs", kind)

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        """Send SIGTERM, and SIGKILL after the grace period or at once; a drone that is gone needs nothing."""
        return await asyncio.gather(*(self._result(self._stop, order) for order in orders))

    async def _stop(self, order: StopOrder) -> None:
        await self._run("stop", order.drone_id, int(order.kill), writes=True)

    async def _result(
        self, call: Callable[[Any], Awaitable[None]], order: StartOrder | StopOrder
    ) -> OrderResult:
        try:
            await call(order)
        except AdapterError as error:
            outcome = (
                OrderOutcome.UNKNOWN
                if isinstance(error, OutcomeUnknownError)
                else OrderOutcome.REJECTED
            )
            return OrderResult(
                order.drone_id, outcome, "", Fault(error.kind, str(error), time.time())
            )
        return OrderResult(order.drone_id, OrderOutcome.OK, order.drone_id)

    async def _run(
        self, verb: str, *arguments: object, payload: bytes = b"", writes: bool
    ) -> list[str]:
        """Run one verb of ``REMOTE`` and return its lines. Raises one of the four errors."""
        words = [
            "sh",
            "-c",
            REMOTE,
            "sh",
            self._config.root,
            self._controller,
            verb,
            *map(str, arguments),
        ]
        file = ["-F", str(self._config.ssh_config)] if self._config.ssh_config else []
        options = ["ssh", "-T", "-o", "BatchMode=yes", *file, "--"]
        lost = OutcomeUnknownError if writes else UnavailableError
        async with self._sessions:
            ssh = await asyncio.create_subprocess_exec(
                *options, self._config.host, shlex.join(words), stdin=PIPE, stdout=PIPE, stderr=PIPE
            )
            try:
                async with asyncio.timeout(self._config.deadline):
                    output, errors = await ssh.communicate(payload)
            except TimeoutError:
                raise lost(f"no answer of {self._config.host} in time") from None
            finally:
                if ssh.returncode is None:
                    ssh.kill()
                    await ssh.wait()
        lines, message = (
            output.decode(errors="replace").splitlines(),
            errors.decode(errors="replace").strip()[-300:],
        )
        if ssh.returncode == 0 and lines[-1:] == ["end"]:
            return lines[:-1]
        if any(words in message for words in ("Permission denied", "Host key verification failed")):
            raise AuthError(message)
        if any(
            words in message
            for words in ("Connection refused", "Could not resolve", "No route to host")
        ):
            raise UnavailableError(message)
        raise lost(message or f"ssh ended with {ssh.returncode} before the answer was complete")


def _payload(order: StartOrder) -> bytes:
    """Return the tar archive of a drone's directory."""
    assert order.bootstrap is not None
    env = {
        **order.bootstrap.env,
        **drone.environment(order),
        "PROVISIONER_DRONE_ID": order.drone_id,
    }
    files = {
        "launcher": LAUNCHER.encode(),
        "script": order.bootstrap.script,
        "grace": f"{order.grace_s:g}\n".encode(),
        "env": "".join(
            f"export {name}={shlex.quote(value)}\n" for name, value in env.items()
        ).encode(),
        "work/": b"",
        **{f"work/{name}": data for name, data in order.bootstrap.files.items()},
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name.rstrip("/"))
            entry.type, entry.mode = (
                (tarfile.DIRTYPE, 0o700) if name.endswith("/") else (tarfile.REGTYPE, 0o600)
            )
            entry.size, entry.mtime = len(data), int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    return archive.getvalue()


def _remote_drone(line: str) -> RemoteDrone:
    drone_id, type_name, state, started_at, end_kind, ended_at, code = line.split(" ")
    end = None
    if state == "ended":
        # else the host went down, or the launcher was killed
        known = code != "-" or end_kind == "stopped"
        exit_code = None if code == "-" else int(code)
        # the reason, for people
        message = "" if known else "the host went down, or its launcher was killed"
        end = RemoteEnd(
            EndKind(end_kind) if known else EndKind.FAULT, float(ended_at), exit_code, message
        )
    return RemoteDrone(
        DroneId(drone_id), RemoteState(state), drone_id, type_name, float(started_at), end=end
    )
