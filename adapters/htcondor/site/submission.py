"""Submit descriptions of drones, one for all that differ only in their id, and their files on the submitting host."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from adapters.htcondor import classad2
from adapters.htcondor.site import grid
from adapters.htcondor.site.listing import SPOOLING
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.shared import parcel
from adapters.shared.commands.runner import Runner
from provisioner import drone
from provisioner.gpu_models import canonical
from provisioner.interfaces import RejectedError, UnavailableError
from provisioner.model import (
    NVIDIA,
    WHOLE_GPU,
    Bootstrap,
    DroneId,
    DroneType,
    FaultKind,
    StartOrder,
)
from provisioner.values import frozen

BEGIN = "begin.sh"
SCRIPT = "drone.sh"
LOG = "drone.log"
LEFT_BEHIND = (LOG, "outcome", "log")  # output of a drone, in its directory below ``$(outputs)``
PARCEL = "drone.tar"  # input of a drone that a computing element starts: some take no directories
_BEGIN = """\
#!/bin/sh
# What HTCondor runs: the drone, with all that it says and leaves among the files that come home. (A job's standard
# output does not when the job is removed, and a file that is missing would put it on hold.)
umask 077
"""
_UNPACK_PARCEL = f"tar -xf {PARCEL} || exit 70\n"
_RUN = f"""\
mkdir -p log
: >>outcome
exec /bin/sh ./{SCRIPT} >{LOG} 2>&1
"""

STARTED = "((NumJobStarts ?: 0) > 0 || JobCurrentStartExecutingDate =!= undefined)"
"""The count alone is late: the shadow reports it every SHADOW_QUEUE_UPDATE_INTERVAL, a quarter of an hour."""
ONE_LIFE = "((MY.NumJobStarts ?: 0) == 0 && MY.JobCurrentStartExecutingDate =?= undefined)"
"""In the job's Requirements: between its eviction and the schedd's next evaluation of
periodic_remove, a minute or more, it would be matched again."""
_MAX_JOBS = 1000
"""Jobs of one submit."""
_LEAST_SPOOL_LIMIT_S = 120
_LONGEST_TRIAL_S = 600
VRAM_TOLERANCE = 0.9
"""Tolerance for the VRAM that a type declares: a "32 GB" V100S reports 32510 MiB, a "24 GB" A10
22731. No two sizes of card are that close together."""
_WALLTIME_SLACK_S = 60
_INPUT_NAME = re.compile(
    r"[A-Za-z0-9_@+=-][A-Za-z0-9_.@+=-]{0,127}(/[A-Za-z0-9_@+=-][A-Za-z0-9_.@+=-]{0,127})*"
)
_VARIABLE_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DRONE_ID = re.compile(r"[a-z0-9-]{1,63}")


@frozen
class SubmitDescription:
    """One cluster of jobs: ``condor_submit`` of ``description`` with ``queue drone_id from <drone_ids>``."""

    description: str
    """Submit commands, a line each, without ``queue``.

    The client defines two macros above them, absolute paths where the submitter runs:
    ``$(inputs)``, the directory that holds ``files``, and ``$(outputs)``, in which it has made a
    directory for each drone, named by its id.
    """
    drone_ids: tuple[DroneId, ...]
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Input files by relative name, mode 0600 (0700 those that end in ``.sh``); may be secret."""

    @property
    def digest(self) -> str:
        """Name of the files: the same name is the same content."""
        found = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            found.update(f"{len(name)} {name} {len(content)} ".encode() + content)
        return found.hexdigest()[:24]


def of_drones(drone_ids: Iterable[str]) -> str:
    return f'stringListMember(DroneId, {classad2.quote(",".join(drone_ids))}, ",")'


def unsubmittable(order: StartOrder, controller: str) -> str:
    """Return why this order can never be submitted; "" if it can."""
    if not _DRONE_ID.fullmatch(order.drone_id) or not order.drone_id.startswith(f"{controller}-"):
        return "not a drone id of this controller"
    if order.bootstrap is None:
        return "the order has no bootstrap: nothing to run"
    for name in order.bootstrap.files:
        if not _INPUT_NAME.fullmatch(name) or name.split("/")[0] in (BEGIN, SCRIPT, *LEFT_BEHIND):
            return f"a drone cannot take a file along as {name[:60]!r}"
    for name, value in order.bootstrap.env.items():
        if not _VARIABLE_WORD.fullmatch(name) or not value.isprintable() or "$$" in value:
            return f"environment variable {name[:60]!r} cannot be put into a submit description"
    return ""


def batches(
    orders: Sequence[StartOrder],
    config: HTCondorSiteConfig,
    controller: str,
    avoided: Sequence[str] = (),
) -> Iterator[SubmitDescription]:
    """Yield the checked orders in as few submits as possible: those of one differ by nothing but their id.

    ``avoided``: machines that they do not run on.
    """
    alike: dict[str, list[StartOrder]] = {}
    for order in orders:
        assert order.bootstrap is not None
        env = sorted(order.bootstrap.env.items())
        files = sorted(order.bootstrap.files.items())
        but_for_the_id = (
            replace(order, drone_id=DroneId(""), bootstrap=None),
            order.bootstrap.script,
            env,
            files,
        )
        alike.setdefault(repr(but_for_the_id), []).append(order)
    for each in alike.values():
        for start in range(0, len(each), _MAX_JOBS):
            ids = tuple(order.drone_id for order in each[start : start + _MAX_JOBS])
            boots = each[0].bootstrap
            assert boots is not None
            batch = SubmitDescription("", ids, _inputs(boots, packed=config.is_grid(each[0].type)))
            yield replace(
                batch,
                description=_description(each[0], boots, config, controller, batch.digest, avoided),
            )


def _inputs(bootstrap: Bootstrap, *, packed: bool) -> Mapping[str, bytes]:
    files = {SCRIPT: bootstrap.script, **bootstrap.files}
    if not packed:
        return {BEGIN: (_BEGIN + _RUN).encode(), **files}
    scripts = [name for name in files if name.endswith(".sh")]
    parcel_of_files = drone.archive(dict(sorted(files.items())), scripts)
    return {BEGIN: (_BEGIN + _UNPACK_PARCEL + _RUN).encode(), PARCEL: parcel_of_files}


def _description(
    order: StartOrder,
    bootstrap: Bootstrap,
    config: HTCondorSiteConfig,
    controller: str,
    digest: str,
    avoided: Sequence[str],
) -> str:
    kind = order.type
    joined = ("requirements", "require_gpus")
    plain = {
        name: value for name, value in config.commands(kind).items() if name.lower() not in joined
    }
    taken = sorted({name.split("/")[0] for name in bootstrap.files} | {SCRIPT})
    left: tuple[str, ...] = LEFT_BEHIND
    demanded = admins_requirements(config, kind)
    requirements = [ONE_LIFE, f'(TARGET.Arch == "{kind.arch}")', *([demanded] if demanded else [])]
    if avoided:
        names = ", ".join(map(classad2.quote, avoided))
        requirements.append(f"(member(TARGET.Machine, {{{names}}}) =!= True)")
    requests = {
        "requirements": " && ".join(requirements),
        "job_lease_duration": str(round(config.lease)),
    }
    back = f"(JobStatus == 1 && {STARTED})"
    through_element = config.is_grid(kind)
    if through_element:
        # No lease: the drones would end whenever the way to the element is cut for as long.
        requests = grid.request(kind, plain)
        if not grid.is_arc(plain):  # for a routed job whose route keeps them
            requests["My.remote_Requirements"] = " && ".join(requirements)
        back = grid.BACK_IN_QUEUE
        taken = [PARCEL]
        left = LEFT_BEHIND[: 2 if grid.is_arc(plain) else 3]  # an ARC brings no directory home
    # for a controller that has died too
    limit_s = max(_LEAST_SPOOL_LIMIT_S, round(4 * config.submit_deadline))
    abandoned = f"HoldReasonCode == {SPOOLING} && time() - EnteredCurrentStatus > {limit_s}"
    commands = {
        "universe": "vanilla",
        **plain,
        **requests,
        "executable": f"$(inputs)/{BEGIN}",
        "transfer_input_files": ", ".join(f"$(inputs)/{name}" for name in taken),
        "initialdir": "$(outputs)/$(drone_id)",
        "transfer_output_files": ", ".join(left),
        "should_transfer_files": "YES",
        "when_to_transfer_output": "ON_EXIT_OR_EVICT",
        "environment": _environment(order, bootstrap, config),
        **_shape(kind, _admins_command(config, kind, "require_gpus")),
        "notification": "never",
        "max_job_retirement_time": "0",
        "job_max_vacate_time": str(max(1, round(order.grace_s))),
        "want_graceful_removal": "True",
        "on_exit_remove": "True",
        "leave_in_queue": f"(JobStatus == 3 || JobStatus == 4) && time() - EnteredCurrentStatus <"
        f" {round(config.retain_finished)}",
        # An evicted job would begin a second life; a held one would wait for a person; one that
        # never gets its files would wait without end.
        "periodic_remove": f"{back} ||"
        f" (JobStatus == 5 && (HoldReasonCode =!= {SPOOLING} || ({abandoned})))",
        **_ours(order, controller, digest, forwarded=through_element),
    }
    return "".join(f"{name} = {value}\n" for name, value in commands.items())


def trial(config: HTCondorSiteConfig, kind: DroneType, name: DroneId) -> SubmitDescription:
    """Return a job of a type's shape that ends at once and is none of our drones."""
    plain = config.commands(kind)
    commands = {
        **plain,
        **grid.request(kind, plain),
        **_shape(kind, _admins_command(config, kind, "require_gpus")),
        "executable": "/bin/true",
        "transfer_executable": "False",
        "should_transfer_files": "YES",
        "initialdir": "$(outputs)/$(drone_id)",
        "notification": "never",
        "periodic_remove": f"time() - QDate > {_LONGEST_TRIAL_S}",
        "My.DroneId": '"$(drone_id)"',
    }
    description = "".join(f"{command} = {value}\n" for command, value in commands.items())
    return SubmitDescription(description, (name,))


def admins_requirements(config: HTCondorSiteConfig, kind: DroneType) -> str:
    """Return the site admin's requirements on a slot for this type; "" if there are none."""
    special = config.types.get(kind.name)
    general = _admins_command(config, kind, "requirements")
    return " && ".join(
        f"({each})" for each in ((special and special.requirements), general) if each
    )


def _admins_command(config: HTCondorSiteConfig, kind: DroneType, name: str) -> str:
    return next(
        (value for each, value in config.commands(kind).items() if each.lower() == name),
        "",
    )


def _shape(kind: DroneType, wanted_gpus: str) -> Mapping[str, str]:
    """Return what the drone asks for. Integers without a unit: MiB of memory, KiB of disk."""
    shape = {
        "request_cpus": str(kind.cpus),
        "request_memory": str(kind.memory_mib),
        "request_disk": str(kind.disk_mib * 1024),
    }
    if kind.gpu_milli:
        properties = {  # as the startd's discovery names them
            f"Capability >= {kind.capability / 10:.1f}": kind.capability,
            f"GlobalMemoryMb >= {int(kind.vram_mib * VRAM_TOLERANCE)}": kind.vram_mib,
            f"(MaxSupportedVersion ?: {kind.driver}) >= {kind.driver}": kind.driver,
            f'regexp("{device_pattern(kind.gpu_model)}", DeviceName, "i")': kind.gpu_model,
            "Capability =?= undefined": kind.vendor != NVIDIA,
            f"({wanted_gpus})": wanted_gpus,
        }
        shape["request_gpus"] = str(kind.gpu_milli // WHOLE_GPU)
        if demanded := " && ".join(text for text, wanted in properties.items() if wanted):
            shape["require_gpus"] = demanded
    if kind.walltime_s:
        # The drone leaves by itself when its time is up, and then its slot is free; this is for one
        # that does not.
        shape["allowed_execute_duration"] = str(round(kind.walltime_s) + _WALLTIME_SLACK_S)
    return shape


def device_pattern(model: str) -> str:
    """Return a regular expression for a device of this model, without backslashes: ClassAd strings double them.

    The driver may put words around it ("NVIDIA", "Tesla"): V100 is V100-SXM2-32GB too, and not
    V100S-PCIE-32GB.
    """
    quoted = "".join(
        "[ _-]+" if c == "-" else c if c.isalnum() or c == "/" else f"[{c}]"
        for c in canonical(model)
    )
    return f"(^|[^A-Za-z0-9]){quoted}([^A-Za-z0-9]|$)"


def _environment(order: StartOrder, bootstrap: Bootstrap, config: HTCondorSiteConfig) -> str:
    """Return the variables in the submit language's quoting; ``$`` would begin a macro."""
    variables = {
        "PATH": parcel.SYSTEM_PATH,
        **config.env,
        **bootstrap.env,
        **drone.environment(order),
    }
    words = []
    for name, value in variables.items():
        quoted = value.replace("'", "''").replace('"', '""').replace("$", "$(DOLLAR)")
        words += [f"{name}='{quoted}'"] if name != "DRONE_ID" else []
    words += ["DRONE_ID=$(drone_id)", "PROVISIONER_DRONE_ID=$(drone_id)"]
    return '"' + " ".join(words) + '"'


def _ours(order: StartOrder, controller: str, digest: str, forwarded: bool) -> Mapping[str, str]:
    attributes = {
        "ProvisionerController": f'"{controller}"',
        "DroneId": '"$(drone_id)"',
        "DroneSite": f'"{order.type.site}"',
        "DroneType": f'"{order.type.name}"',
        "DroneGraceS": str(round(order.grace_s)),
        "DroneInputs": f'"{digest}"',
        "DroneEpoch": str(order.epoch),
    }
    scopes = ("My.", "My.remote_") if forwarded else ("My.",)
    return {f"{scope}{name}": value for scope in scopes for name, value in attributes.items()}


_KEPT_MIN = 60
"""Unneeded files are removed once nobody has touched them for so many minutes. A submit under way
may still need younger ones, and a person may want to read what a drone has left."""
_CLEANUP_INTERVAL_S = 600.0  # each poll asks for a cleanup, and each cleanup costs a command
_ENTRY = re.compile(r"(inputs|outputs)/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,150}")

_LAY_OUT = """\
set -eu
umask 077
cd -- "$1"
touch "inputs/$2"
mkdir -p outputs
while read -r drone; do mkdir -p "outputs/$drone"; done
pwd
"""
_WITHOUT_OUTPUT = """\
set -eu
umask 077
mkdir -p -- "$1/outputs"
cd -- "$1/outputs"
while read -r drone; do
    mkdir -p "$drone"
    [ -n "$(ls -A "$drone")" ] || echo "$drone"
done
"""
_OLD = 'cd -- "$1" 2>/dev/null || exit 0; exec find . -mindepth 2 -maxdepth 2 -type d -mmin "+$2"'


class JobFiles:
    """Files below ``root`` (absolute, or below the runner's home): ``inputs/<digest>/``, ``outputs/<drone id>/``."""

    def __init__(self, root: str, deadline_s: float) -> None:
        self._root = root
        self._deadline_s = deadline_s
        self._cleaned_at = -_CLEANUP_INTERVAL_S

    async def lay_out(self, runner: Runner, batch: SubmitDescription) -> str:
        """Write the files of ``batch``, make a directory for each drone, and return the macros that name the places."""
        inputs = f"{self._root}/inputs/{batch.digest}"
        scripts = [name for name in batch.files if name.endswith(".sh")]
        try:
            await parcel.put(
                runner, inputs, batch.files, executable=scripts, deadline_s=self._deadline_s
            )
        except ValueError as error:
            raise RejectedError(str(error), FaultKind.CONFIG) from None
        root = "".join((await self._run(runner, _LAY_OUT, [batch.digest], batch.drone_ids))[-1:])
        if not root.startswith("/"):
            raise UnavailableError(f"{self._root}: no place for files there", FaultKind.CONFIG)
        return f"inputs = {root}/inputs/{batch.digest}\noutputs = {root}/outputs\n"

    async def without_output(
        self, runner: Runner, drones: Collection[DroneId]
    ) -> Collection[DroneId]:
        """Return the drones that have left nothing yet, after making a directory for each of them."""
        empty = set(await self._run(runner, _WITHOUT_OUTPUT, [], drones))
        return [drone_id for drone_id in drones if drone_id in empty]

    async def clean_up(
        self, runner: Runner, inputs_in_use: Collection[str], drones: Collection[DroneId]
    ) -> None:
        """Remove old files that are neither in use nor of a listed drone, at most every ten minutes."""
        if time.monotonic() - self._cleaned_at < _CLEANUP_INTERVAL_S:
            return
        needed = {
            *(f"inputs/{name}" for name in inputs_in_use),
            *(f"outputs/{each}" for each in drones),
        }
        for line in await self._run(runner, _OLD, [str(_KEPT_MIN)], ()):
            entry = line.removeprefix("./")
            if _ENTRY.fullmatch(entry) and entry not in needed:
                await parcel.remove(runner, f"{self._root}/{entry}", deadline_s=self._deadline_s)
        self._cleaned_at = time.monotonic()

    async def _run(
        self, runner: Runner, script: str, words: Iterable[str], lines: Iterable[str]
    ) -> list[str]:
        done = await runner.run(
            ["sh", "-c", script, "job-files", self._root, *words],
            stdin="".join(f"{line}\n" for line in lines).encode(),
            deadline_s=self._deadline_s,
        )
        if done.code:
            raise UnavailableError(f"{self._root}: {done.said}")
        return done.out.decode(errors="replace").splitlines()
