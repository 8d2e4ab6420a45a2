"""Orders for drones as submits: an array for all that differ by nothing but their number, its script with all files."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from adapters.shared.parcel import OURS, Unfit, exports, packed, sendable
from adapters.slurm.names import job_name, serial
from adapters.slurm.records import SlurmSubmission
from adapters.slurm.settings import LIMIT_TICK_S, SlurmSiteConfig, told_life_s
from provisioner import drone
from provisioner.model import WHOLE_GPU, DroneId, DroneType, StartOrder

LARGEST_SCRIPT = 4 * 1024**2 - 4096
"""Slurm's default of ``max_script_size``."""
USUAL_ARRAY = 1001
"""Slurm's default of ``MaxArraySize``: no task's number is as large."""
_LONGEST_NOTICE_S = 65535
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_SAID_BY_THE_JOB = frozenset({"DRONE_ID", "DRONE_DIR", "PROVISIONER_DRONE_ID"})


@dataclass(frozen=True, slots=True)
class Batch:
    """Drones to be submitted together, by the numbers of their tasks, and how."""

    drone_ids: tuple[DroneId, ...]
    orders: tuple[StartOrder, ...]
    submission: SlurmSubmission

    def remote_ids(self, job: int) -> tuple[str, ...]:
        """As Slurm calls them once it has taken them as ``job``."""
        return tuple(f"{job}_{task}" for task in self.submission.tasks) or (str(job),)


def checked(order: StartOrder, controller: str) -> None:
    """Raises Unfit if this order can never be submitted."""
    kind, bootstrap = order.type, order.bootstrap
    if serial(order.drone_id, controller) is None:
        raise Unfit("not a drone id of this controller")
    if bootstrap is None:
        raise Unfit("the order has no admission: nothing to run")
    if kind.gpu_milli % WHOLE_GPU or kind.gpu_milli < 0:
        raise Unfit(f"{kind.gpu_milli / WHOLE_GPU:g} GPUs: Slurm gives whole ones to a drone")
    if kind.cpus < 1 or kind.memory_mib < 1:
        raise Unfit("a drone has a CPU and some memory at least")
    if kind.walltime_s < 60:
        raise Unfit("without a walltime of a minute at least the partition's DefaultTime would end the drone")
    sendable(bootstrap)
    size = sum(len(each) + 1024 for each in (*bootstrap.files.values(), bootstrap.script))
    if size * 1.4 > LARGEST_SCRIPT:
        raise Unfit(f"its files, {size} bytes, are too large for a batch script of {LARGEST_SCRIPT} bytes")


# ------------------------------------------------------------------------------------------------------------- batches


def batches(orders: Sequence[StartOrder], config: SlurmSiteConfig, largest: int = USUAL_ARRAY) -> Iterator[Batch]:
    """``orders`` (checked) in as few submits as can be. ``largest``: the cluster's MaxArraySize."""
    alike: dict[Hashable, list[StartOrder]] = {}
    for order in orders:
        alike.setdefault(_but_for_the_number(order), []).append(order)
    for each in alike.values():
        each.sort(key=_number)
        begin = 0
        for end in range(1, len(each) + 1):
            if end == len(each) or _number(each[end]) - _number(each[begin]) >= largest:
                yield batch(each[begin:end], config)
                begin = end


def batch(orders: Sequence[StartOrder], config: SlurmSiteConfig) -> Batch:
    """One submit for orders that differ by nothing but their number, ascending."""
    kind, base = orders[0].type, _number(orders[0])
    where = config.where(kind.name)
    drone_ids = tuple(order.drone_id for order in orders)
    output = "/dev/null"
    if config.output_directory:
        output = f"{config.output_directory.rstrip('/')}/drone-{'%A_%a' if len(orders) > 1 else '%j'}.log"
    submission = SlurmSubmission(
        name=job_name(drone_ids, kind.name, kind.site),
        script=script(orders, config),
        tasks=tuple(_number(order) - base for order in orders) if len(orders) > 1 else (),
        partition=where.partition,
        account=where.account,
        qos=where.qos,
        reservation=where.reservation,
        constraint=where.constraint,
        gres=_gres(kind, config),
        cpus=kind.cpus,
        memory_mib=kind.memory_mib,
        tmp_mib=0,  # of a node's disk Slurm only knows the size, not what is left: it would keep nothing free
        minutes=_minutes(kind),
        notice_s=min(_LONGEST_NOTICE_S, round(orders[0].grace_s) + LIMIT_TICK_S),
        output=output,
        options=where.submit,
    )
    return Batch(drone_ids, tuple(orders), submission)


def _number(order: StartOrder) -> int:
    return int(order.drone_id.rpartition("-")[2])


def _but_for_the_number(order: StartOrder) -> Hashable:
    bootstrap = order.bootstrap
    assert bootstrap is not None
    prefix = order.drone_id.rpartition("-")[0]
    numbers = (order.idle_timeout_s, order.grace_s, order.kept_vram_mib, order.kept_s, order.uses_reserve)
    files = frozenset(bootstrap.files.items())
    return prefix, repr(order.type), numbers, frozenset(bootstrap.env.items()), files, bootstrap.script


def _gres(kind: DroneType, config: SlurmSiteConfig) -> str:
    gpus = kind.gpu_milli // WHOLE_GPU
    return f"{config.gres(kind.name)}:{gpus}" if gpus else ""


def _minutes(kind: DroneType) -> int:
    """Slurm's limits are whole minutes; not one more than the type may live."""
    return int(kind.walltime_s // 60)


def life_s(order: StartOrder) -> int:
    """Return the lifetime that the drone is given, in seconds."""
    return told_life_s(order.type.walltime_s, order.grace_s)


# -------------------------------------------------------------------------------------------------------------- script


@cache
def _body() -> str:
    shared = resources.files("adapters.shared").joinpath("tagged.sh").read_text()
    return shared + resources.files(__package__).joinpath("job.sh").read_text()


def script(orders: Sequence[StartOrder], config: SlurmSiteConfig) -> bytes:
    """The batch script for orders that differ by nothing but their number: plain ASCII, whatever is in the files."""
    order = orders[0]
    prefix, _, first = order.drone_id.rpartition("-")
    told = {
        "controller": prefix.rpartition("-")[0],
        "prefix": prefix,
        "first": first,
        "cpus": str(order.type.cpus),
        "gres": _gres(order.type, config) or "none",
        "grace_s": str(round(order.grace_s)),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in told.items()]
    lines.append(f"scratch={_scratch(config.scratch)}")
    encoded = base64.encodebytes(_archive(order, config)).decode()
    files = f"files() {{\n    base64 -d <<'END_OF_FILES'\n{encoded}END_OF_FILES\n}}\n"
    return ("\n".join(["#!/bin/sh", *lines, files]) + _body()).encode("ascii")


def _scratch(scratch: str) -> str:
    """As the shell on the node is told of it."""
    if scratch.startswith("$"):
        return f'"${{{scratch[1:]}:-${{TMPDIR:-/tmp}}}}"'
    return shlex.quote(scratch.rstrip("/") or "/") if scratch else '"${TMPDIR:-/tmp}"'


def _archive(order: StartOrder, config: SlurmSiteConfig) -> bytes:
    """The drone's directory."""
    assert order.bootstrap is not None
    script = {f"{OURS}/script": order.bootstrap.script, f"{OURS}/step": _step(order, config)}
    return packed({**order.bootstrap.files, **script})


def _step(order: StartOrder, config: SlurmSiteConfig) -> bytes:
    """What the step runs: the drone's environment and, in the same process, the drone. Its lock is for all that it
    starts; its pid is for who tells it to leave."""
    lines = exports(_environment(order, config))
    return "\n".join(
        [
            'cd "$DRONE_DIR" || exit 69',
            'export HOME="$DRONE_DIR"',
            # Not before: in the end a drone kills all that carries its tag but its parents, and srun is none of those.
            'export PROVISIONER_DRONE_ID="$DRONE_ID"',
            *lines,
            f"exec 9<{OURS}/lock",
            "flock -s 9 2>/dev/null",
            f"echo $$ >{OURS}/pid.new && mv {OURS}/pid.new {OURS}/pid || exit 69",
            f"[ ! -e {OURS}/asked ] || exit 143",
            f"exec /bin/sh {OURS}/script",
            "",
        ]
    ).encode("utf-8", "surrogateescape")


def _environment(order: StartOrder, config: SlurmSiteConfig) -> Mapping[str, str]:
    assert order.bootstrap is not None
    type_as_told = replace(order.type, walltime_s=float(life_s(order)))
    told = drone.environment(replace(order, type=type_as_told))
    env = {"PATH": _PATH, **order.bootstrap.env, **config.env, **told}
    return {name: value for name, value in env.items() if name not in _SAID_BY_THE_JOB}


def largest_array(configuration: Mapping[str, str]) -> int:
    """MaxArraySize of a cluster that tells it; 1 where arrays are switched off (0): a job for each drone."""
    told = configuration.get("MaxArraySize", "")
    return max(1, int(told)) if re.fullmatch("[0-9]{1,7}", told) else USUAL_ARRAY
