"""Start orders as submissions: one array for all drones that differ only in their number."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from adapters.shared.parcel import (
    OURS,
    SYSTEM_PATH,
    UnfitError,
    files_function,
    packed,
    script,
    scripts,
    validated,
)
from adapters.slurm.drones import job_name
from adapters.slurm.records import SlurmSubmission
from adapters.slurm.settings import LIMIT_CHECK_INTERVAL_S, SlurmSiteConfig, drone_lifetime_s
from provisioner import drone
from provisioner.model import WHOLE_GPU, DroneId, DroneType, StartOrder
from provisioner.values import frozen

MAX_SCRIPT_BYTES = 4 * 1024**2 - 4096
"""Slurm's default of ``max_script_size``."""
_MAX_NOTICE_S = 65535
_SET_BY_JOB = frozenset({"DRONE_ID", "DRONE_DIR", "PROVISIONER_DRONE_ID"})


@frozen
class SlurmBatch:
    """Drones that are submitted together, in the order of their tasks."""

    orders: tuple[StartOrder, ...]
    submission: SlurmSubmission

    @property
    def drone_ids(self) -> tuple[DroneId, ...]:
        return tuple(order.drone_id for order in self.orders)

    def remote_ids(self, job: int) -> tuple[str, ...]:
        """Return the ids of the drones once Slurm has accepted them as ``job``."""
        return tuple(f"{job}_{task}" for task in self.submission.tasks) or (str(job),)


def validate_order(order: StartOrder, controller: str) -> None:
    """Raise UnfitError if this order can never be submitted."""
    bootstrap = validated(order, controller)
    size = sum(len(each) + 1024 for each in (*bootstrap.files.values(), bootstrap.script))
    if size * 1.4 > MAX_SCRIPT_BYTES:
        raise UnfitError(
            f"its files, {size} bytes, are too large for a batch script of {MAX_SCRIPT_BYTES} bytes"
        )


def make_batches(
    orders: Sequence[StartOrder],
    config: SlurmSiteConfig,
    max_array_size: int,
    avoided: Sequence[str] = (),
) -> Iterator[SlurmBatch]:
    """Yield validated orders in as few submissions as possible. ``max_array_size``: task numbers are smaller."""
    groups: list[list[StartOrder]] = []
    for order in orders:
        group = next((each for each in groups if _differ_in_number_only(each[0], order)), None)
        if group is None:
            groups.append([order])
        else:
            group.append(order)
    for group in groups:
        group.sort(key=_number)
        begin = 0
        for end in range(1, len(group) + 1):
            if end == len(group) or _number(group[end]) - _number(group[begin]) >= max_array_size:
                yield make_batch(group[begin:end], config, avoided)
                begin = end


def make_batch(
    orders: Sequence[StartOrder], config: SlurmSiteConfig, avoided: Sequence[str] = ()
) -> SlurmBatch:
    """Return one submission for orders that differ only in their number, ascending.

    ``avoided``: nodes that are excluded, unless the options name nodes, or a file of nodes.
    """
    drone_type = orders[0].type
    base = _number(orders[0])
    options = config.options_for(drone_type.name).sbatch_options()
    if orders[0].epoch:
        options.setdefault("comment", f"epoch={orders[0].epoch}")
    if drone_type.gpu_milli:
        options["gres"] = _gres(drone_type, config)
    excluded = str(options.get("exclude", ""))
    if avoided and "/" not in excluded and "nodelist" not in options:
        options["exclude"] = ",".join(filter(None, (excluded, *avoided)))
    output = "/dev/null"
    if config.output_directory:
        output = f"{config.output_directory.rstrip('/')}/drone-{'%A_%a' if len(orders) > 1 else '%j'}.log"
    submission = SlurmSubmission(
        name=job_name([order.drone_id for order in orders], drone_type.name, drone_type.site),
        script=render_script(orders, config),
        tasks=tuple(_number(order) - base for order in orders) if len(orders) > 1 else (),
        cpus=drone_type.cpus,
        memory_mib=drone_type.memory_mib,
        # Not `tmp`: Slurm knows only the size of a node's disk, not its free space, and would
        # reserve nothing. whole minutes, rounded down: the type may not live longer
        minutes=int(drone_type.walltime_s // 60),
        notice_s=min(_MAX_NOTICE_S, round(orders[0].grace_s) + LIMIT_CHECK_INTERVAL_S),
        output=output,
        options=options,
    )
    return SlurmBatch(tuple(orders), submission)


def _number(order: StartOrder) -> int:
    return int(order.drone_id.rpartition("-")[2])


def _differ_in_number_only(one: StartOrder, other: StartOrder) -> bool:
    same_prefix = one.drone_id.rpartition("-")[0] == other.drone_id.rpartition("-")[0]
    return same_prefix and replace(one, drone_id=other.drone_id) == other


def _gres(drone_type: DroneType, config: SlurmSiteConfig) -> str:
    return f"{config.options_for(drone_type.name).gres}:{drone_type.gpu_milli // WHOLE_GPU}"


def max_array_size(configuration: Mapping[str, str]) -> int:
    """Return MaxArraySize, or Slurm's default; 1 where arrays are disabled (0): a job for each drone."""
    text = configuration.get("MaxArraySize", "")
    return max(1, int(text)) if re.fullmatch("[0-9]{1,7}", text) else 1001


def render_script(orders: Sequence[StartOrder], config: SlurmSiteConfig) -> bytes:
    """Return the batch script for orders that differ only in their number: plain ASCII, with the drone's directory."""
    order = orders[0]
    bootstrap = orders[0].bootstrap
    assert bootstrap is not None
    prefix, _, first = order.drone_id.rpartition("-")
    variables = {
        "controller": prefix.rpartition("-")[0],
        "prefix": prefix,
        "first": first,
        "cpus": str(order.type.cpus),
        "gres": _gres(order.type, config) if order.type.gpu_milli else "none",
        "grace_s": str(round(order.grace_s)),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    scratch = (
        shlex.quote(config.scratch.rstrip("/") or "/") if config.scratch else '"${TMPDIR:-/tmp}"'
    )
    if config.scratch.startswith("$"):
        scratch = f'"${{{config.scratch[1:]}:-${{TMPDIR:-/tmp}}}}"'
    lines.append(f"scratch={scratch}")
    own = {f"{OURS}/script": bootstrap.script, f"{OURS}/step": _step(order, bootstrap.env, config)}
    lines.append(files_function(packed({**bootstrap.files, **own})))
    return ("\n".join(["#!/bin/sh", *lines]) + scripts(__package__, "job.sh")).encode("ascii")


def _step(order: StartOrder, env: Mapping[str, str], config: SlurmSiteConfig) -> bytes:
    """Return the script of the job step: the drone's environment and, in the same process, the drone.

    All that the drone starts inherits its lock. Its pid is for the batch script, which signals it.
    """
    lifetime_s = float(drone_lifetime_s(order.type.walltime_s, order.grace_s))
    of_drone = drone.environment(replace(order, type=replace(order.type, walltime_s=lifetime_s)))
    variables = {"PATH": SYSTEM_PATH, **env, **config.env, **of_drone}
    return script(
        'cd "$DRONE_DIR" || exit 69',
        'export HOME="$DRONE_DIR"',
        # Not before: in the end a drone kills all that carries its tag but its parents, and srun is
        # none of those.
        'export PROVISIONER_DRONE_ID="$DRONE_ID"',
        *drone.exports(
            {name: value for name, value in variables.items() if name not in _SET_BY_JOB}
        ),
        f"exec 9<{OURS}/lock",
        "flock -s 9 2>/dev/null",
        f"echo $$ >{OURS}/pid.new && mv {OURS}/pid.new {OURS}/pid || exit 69",
        f"[ ! -e {OURS}/asked ] || exit 143",
        f"exec /bin/sh {OURS}/script",
    )
