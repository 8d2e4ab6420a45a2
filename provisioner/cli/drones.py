"""``provisioner drones drain`` and ``kill``: ask drones to leave."""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

import typer

from provisioner import descriptions, formatting
from provisioner.answers.drones import DroneFilter
from provisioner.answers.errors import Exit, UsageError, VerbError, named
from provisioner.answers.lookup import find_drone
from provisioner.answers.query import option, subject, switch
from provisioner.cli import options as opt, output as out
from provisioner.cli.questions import question_app
from provisioner.model import (
    DrainMode,
    DroneId,
    RequestKind,
)
from provisioner.store.reader import Reader

drones_app = question_app("drones")


WAIT_POLL_S = 0.5
CONFIRM_FROM = 2

_MODE_HELP = (
    "; ".join(f"{mode.value}: {words}" for mode, words in descriptions.DRAIN_MODE_WORDS.items())
    + "."
)


class LeaveOptions(DroneFilter):
    """Options of the verbs that make drones leave."""

    ids: Annotated[
        list[str] | None, subject("ID", "Ids of drones (see `provisioner drones --help`).")
    ] = None
    reason: Annotated[str, option("TEXT", "Reason, recorded with every step.", "--reason", "-r")]
    yes: Annotated[bool, switch("Do not ask for confirmation.", "--yes", "-y")] = False
    dry_run: Annotated[bool, switch("Only list the selected drones.")] = False
    wait: Annotated[bool, switch("Return after all of them have ended.")] = False
    timeout: Annotated[
        float, option("SECONDS", "With --wait: stop waiting after this time (exit 124).", least=0)
    ] = 600.0


@drones_app.command("drain")
@opt.shared
def drain(
    options: LeaveOptions,
    where: opt.Where,
    mode: Annotated[DrainMode, typer.Option("--mode", help=_MODE_HELP)] = DrainMode.PEACEFUL,
) -> None:
    """Drain drones: they accept no new jobs and end. The controller does this at its next tick.

    \b
    Examples:
      provisioner drones drain --node topas-a100-1 --reason "kernel update" --yes --wait --timeout 3600
      provisioner drones drain 17 18 19 --mode fast --reason "hung jobs" --wait --timeout 120
    """
    verb = f"drain ({mode.value}: {descriptions.DRAIN_MODE_WORDS[mode]})"
    _request_leave(where, RequestKind.DRAIN, mode, verb, options)


@drones_app.command("kill")
@opt.shared
def kill(options: LeaveOptions, where: opt.Where) -> None:
    """Stop drones at their sites without waiting for their jobs. The controller does this at its next tick.

    \b
    Examples:
      provisioner drones kill kit-x7q2-17 --reason "GPU fell off the bus"
    """
    _request_leave(where, RequestKind.KILL, DrainMode.PEACEFUL, "kill", options)


def _request_leave(
    where: opt.Where, kind: RequestKind, mode: DrainMode, verb: str, options: LeaveOptions
) -> None:
    """Record the request. Raises ``typer.Exit`` with :attr:`Exit.PARTIAL` if only some ids are known."""
    if not options.reason.strip():
        raise UsageError("--reason must not be empty: it is recorded with every step")
    if bool(options.ids) == bool(options.given):
        which = "name drones, or select them with --site, --state, --type, --node, not both"
        raise UsageError(which)
    reader: Reader | None = None
    if where.url is None:
        reader = opt.open_record(where)
        chosen, gone, complaints = _selected(reader, options)
    elif options.wait:
        raise UsageError("--wait needs the record itself: remove --wait or --url")
    else:
        from provisioner.cli import remote

        chosen = [
            DroneId(name) for name in options.ids or remote.names(where, "/drones", options.given)
        ]
        gone = []
        complaints = []
    if gone:
        out.note(f"already ended, nothing to do: {named(gone)}")
    out.note(*complaints)
    if not chosen:
        if complaints:
            raise VerbError("nothing to do")
        out.note("no live drone is selected: nothing to do")
        return
    what = f"{verb} {formatting.count(len(chosen), 'drone')}"
    if options.dry_run:
        out.note(f"would {what}:")
        print("\n".join(chosen))
    else:
        if not options.yes and len(chosen) >= CONFIRM_FROM:
            question = f"{what}: {named(chosen)}?"
            if not sys.stdin.isatty():
                raise UsageError(question, "no terminal for the confirmation: add --yes")
            typer.confirm(formatting.sanitize(question), err=True, abort=True)
        if reader is None:
            complaints = _ask_service(where, kind, mode, chosen, options.reason)
        else:
            record_request(reader, kind, chosen, options.reason, what, mode)
            if options.wait:
                _wait_for_ends(reader, chosen, options.timeout)
    if complaints:
        raise typer.Exit(Exit.PARTIAL)


def _ask_service(
    where: opt.Where, kind: RequestKind, mode: DrainMode, chosen: Sequence[str], reason: str
) -> list[str]:
    """Request it at the web service, one drone after the other, and return the complaints if some are refused."""
    from provisioner.cli import remote

    refusals: list[VerbError] = []
    for each in chosen:
        body = {"reason": reason, "mode": mode.value if kind is RequestKind.DRAIN else None}
        try:
            remote.post(where, f"/drones/{quote(each, safe='')}/{kind.value}", **body)
        except VerbError as refusal:
            refusals.append(refusal)
    complaints = [line for refusal in refusals for line in refusal.lines]
    if len(refusals) == len(chosen):
        raise VerbError(*complaints, code=refusals[0].code)
    out.note(*complaints)
    return complaints


def record_request(
    reader: Reader,
    kind: RequestKind,
    ids: Sequence[DroneId],
    reason: str,
    what: str,
    mode: DrainMode = DrainMode.PEACEFUL,
) -> None:
    """Record a request for the next tick, and tell the person if nobody carries it out now."""
    serial = reader.ask(kind, ids, reason=reason, by=operator(), at=reader.now(), mode=mode)
    out.note(f"request {serial} recorded: {what}")
    if reader.holder() is None:
        out.note("no controller runs: the next one will carry it out")


def _selected(
    reader: Reader, options: LeaveOptions
) -> tuple[list[DroneId], list[DroneId], list[str]]:
    """Return the live drones that are meant, the ended ones among those named, and complaints about unknown ids."""
    if not options.ids:
        return [d.id for d in options.find(reader, ended=False)], [], []
    live: dict[DroneId, bool] = {}
    complaints: list[str] = []
    for any_id in options.ids:
        try:
            drone_id = find_drone(reader, any_id)
        except VerbError as unknown:
            complaints += unknown.lines
            continue
        drone = reader.drone(drone_id)
        live[drone_id] = drone is not None and not drone.state.ended
    return [i for i in live if live[i]], [i for i in live if not live[i]], complaints


def operator() -> str:
    """Return the name of the user, and behind `sudo` of the one who called it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    behind = os.environ.get("SUDO_USER")
    return f"{behind} (as {name})" if behind and behind != name else name


def _wait_for_ends(reader: Reader, left: list[DroneId], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        for drone_id in list(left):
            drone = reader.drone(drone_id)
            if drone is None or drone.state.ended:
                out.note(
                    f"{drone_id} {'is no longer on record' if drone is None else drone.state.value}"
                )
                left.remove(drone_id)
        if not left:
            return
        if time.monotonic() >= deadline:
            late = f"after {formatting.age(timeout_s)} not ended: {named(left)}"
            raise VerbError(late, code=Exit.TIMED_OUT)
        time.sleep(min(WAIT_POLL_S, max(0.0, deadline - time.monotonic())))
