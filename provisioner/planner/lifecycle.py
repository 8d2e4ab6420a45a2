"""The life cycle of a drone: the state changes that views and order results cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from provisioner import model, reasons
from provisioner.model import (
    Drone,
    DroneState,
    EndKind,
    Eviction,
    OrderOutcome,
    OrderResult,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    SitePolicy,
    SiteView,
    Slot,
    SlotState,
    StateChange,
)
from provisioner.planner.context import VANISHED_WAIT_FACTOR, ViewValidity
from provisioner.planner.settled import HEARTBEAT_RECORD_INTERVAL_S
from provisioner.reasons import Reason

S = DroneState


_IN_POOL = (S.JOINED, S.IDLE, S.BUSY)
_SHOWN = {
    SlotState.CHECKING: S.JOINED,
    SlotState.IDLE: S.IDLE,
    SlotState.BUSY: S.BUSY,
    SlotState.DRAINING: S.DRAINING,
}
BY_LISTING: Mapping[tuple[DroneState, RemoteState], DroneState] = {
    (S.REQUESTED, RemoteState.UNKNOWN): S.SUBMITTED,
    **{(state, RemoteState.PENDING): S.QUEUED for state in model.PENDING},
    **{(state, RemoteState.RUNNING): S.BOOTING for state in model.PENDING},
    # Preempted, and put back into the queue by its site.
    **{(state, RemoteState.PENDING): S.QUEUED for state in _IN_POOL},
    **{(state, RemoteState.STOPPED): S.STOPPING for state in S if not state.ended},
}
"""State of a drone by its state and that in the listing of its site. All other pairs change nothing."""
BY_SLOT: Mapping[tuple[DroneState, SlotState], DroneState] = {
    **{
        (state, slot): shown
        for state in (*model.PENDING, *_IN_POOL)
        for slot, shown in _SHOWN.items()
    },
    # Taken back into service by the pool.
    (S.DRAINING, SlotState.IDLE): S.IDLE,
    (S.DRAINING, SlotState.BUSY): S.BUSY,
}
"""State of a drone by its state and that of its slot. All other pairs change nothing."""

EVICTION_SLACK_S = 30.0
"""An eviction may be dated this much before the notice that caused it: two clocks with whole seconds."""
CLAIM_UNKNOWN_S = 60.0
"""For this long after a claim the queue may not show its job, which may be one with an optional GPU."""
EXIT_JOIN_TIMEOUT = 73
"""Exit code of a drone that could not join the pool (``docs/reference/drone.md``)."""


def observe_all(snapshot: model.Snapshot, validity: ViewValidity) -> list[StateChange]:
    """Return the state changes that fresh views show. Drones that are settled now are noted as such.

    Each drone is observed by itself: by its record, its entry in the site's listing and its slot,
    each of which may be missing. No change depends on another drone, but for what concerns a whole
    view: whether it is fresh, doubted, or silent about evictions.
    """
    view = snapshot.overlay.view if validity.overlay is None else None
    evictions = defaultdict[model.DroneId, list[Eviction]](list)
    for eviction in view.evictions or () if view is not None else ():
        evictions[eviction.drone_id].append(eviction)
    any_optional = view is not None and any(job.gpu_optional for job in view.classes)
    none_reported = () if view is not None and _reports_all_evictions(view) else None
    kinds = {kind.key: kind for kind in snapshot.types}
    moves = []
    for seen in validity.news:
        drone, slot, _ = seen
        move = observe(
            drone,
            validity.views.get(drone.site),
            slot,
            pool_fresh=validity.pool_doubt(drone) is None,
            evictions=evictions.get(drone.id, none_reported),
            policy=snapshot.policy.of_site(drone.site),
            any_optional=any_optional,
            doubted=validity.sites.get(drone.site) is not None,
            now=snapshot.now,
        )
        if move is not None:
            moves.append(move)
        after = drone if move is None else move.drone
        validity.settled.add(seen, after, snapshot, kinds.get(drone.type))
    return moves


def _reports_all_evictions(view: model.OverlayView) -> bool:
    """Return True if a drone without evictions had none: queues that do not answer may know of some."""
    return view.evictions is not None and not view.unheard


def _seen_in_pool(drone: Drone, slot: Slot, now: float) -> reasons.SeenInPool:
    return reasons.SeenInPool(slot.state.value, slot.jobs, now - drone.requested_at)


def observe(
    drone: Drone,
    view: SiteView | None,
    slot: Slot | None,
    *,
    pool_fresh: bool,
    evictions: Sequence[Eviction] | None = None,
    policy: SitePolicy,
    any_optional: bool = False,
    doubted: bool,
    now: float,
) -> StateChange | None:
    """Return the change that the site's view and the slot show for one drone, or None if nothing is new.

    A view or slot is None if no fresh one exists, ``evictions`` if the overlay does not report
    them. ``any_optional``: there are jobs with an optional GPU.

    The site decides whether a drone exists, and the pool what it does. So an end comes from the
    site alone (or from its silence, after a while), the slot is read last and wins where both have
    news, and a drone that the site has stopped is not brought back to life by an old slot ad.
    """
    seen = drone
    reason = None
    remote = view.drones.get(drone.id) if view is not None else None
    if remote is not None:
        if _is_over(remote):
            return _ended(drone, remote, slot, evictions, policy, now)
        seen, reason = _listed(drone, remote, now)
    elif view is not None:
        seen, reason = _unlisted(drone, view, slot, policy, doubted=doubted, now=now)
    if seen.state.ended:
        # The site listed it until it was missed: it lived at least as long, whenever the pool last
        # heard from it.
        at = max(drone.heard_at, drone.missing_at) or now
        priced = _with_lost_work(drone, slot, evictions, policy, at)
        seen = replace(seen, lost_gpu_s=priced.lost_gpu_s, lost_jobs=priced.lost_jobs)
    elif remote is None or remote.state is not RemoteState.STOPPED:
        if slot is not None:
            seen, reason = _in_pool(seen, slot, reason, now, any_optional=any_optional)
        elif pool_fresh and seen.joined_at and not seen.unslotted_at:
            seen = replace(seen, unslotted_at=now)
    if seen is drone or seen == drone:
        return None
    return StateChange(
        seen, drone.state, reason or reasons.SeenAtSite(seen.state.value, seen.site_reason)
    )


def _is_over(remote: RemoteDrone) -> bool:
    """Return True if its site reports the end of a drone. A stopped one still holds resources."""
    reported = remote.end is not None or remote.state is RemoteState.ENDED
    return reported and remote.state is not RemoteState.STOPPED


def _with(drone: Drone, **changes: Any) -> Drone:
    """Return the drone with other fields, itself where they are its own: most drones have no news."""
    for name, value in changes.items():
        if getattr(drone, name) != value:
            return replace(drone, **changes)
    return drone


def _listed(drone: Drone, remote: RemoteDrone, now: float) -> tuple[Drone, Reason | None]:
    """Return the drone as its site lists it. One that the site reports as stopped counts as asked to stop.

    What the site has reported once stays until it reports something else: ids, node and times are
    never emptied by a listing that lacks them. Its reason and its notice are those of this listing.
    """
    stopped = remote.state is RemoteState.STOPPED
    state = BY_LISTING.get((drone.state, remote.state), drone.state)
    if state is S.QUEUED and drone.state in _IN_POOL and drone.started_at >= drone.joined_at:
        state = drone.state  # its site has not listed it as running yet: the listing lags
    seen = _with(
        drone,
        state=state,
        since=drone.since if state is drone.state else now,
        remote_id=remote.remote_id or drone.remote_id,
        submitted_at=drone.submitted_at or now,
        started_at=drone.started_at or _started_at(remote, now),
        missing_at=0.0,
        site_reason=remote.reason,
        node=remote.node or drone.node,
        site_slot=remote.slot or drone.site_slot,
        notice_at=_notice_at(drone, remote),
    )
    if stopped and state is not drone.state:
        seen = replace(seen, asked_at=now, asked=1)
    if seen is drone:
        return drone, None
    if seen.notice_at and not drone.notice_at and not stopped:
        return seen, reasons.PreemptionNotice(remote.reason)
    return seen, reasons.SeenAtSite(remote.state.value, remote.reason)


def _started_at(remote: RemoteDrone, now: float) -> float:
    if remote.state is RemoteState.RUNNING:
        return remote.started_at or now
    return remote.started_at if remote.state is RemoteState.STOPPED else 0.0


def _notice_at(drone: Drone, remote: RemoteDrone) -> float:
    """Return the time of the first notice: ours, if we asked before the site did."""
    if drone.state is S.STOPPING or remote.notice_at:
        return drone.notice_at or remote.notice_at
    return 0.0


def _unlisted(
    drone: Drone,
    view: SiteView,
    slot: Slot | None,
    policy: SitePolicy,
    *,
    doubted: bool,
    now: float,
) -> tuple[Drone, Reason | None]:
    """Return the change of a drone that the listing lacks: missing once is not gone.

    A drone that the site has confirmed is given up only if a listing that began after its order
    lacks it, a later one lacks it too, the pool has not heard from it in between, and the site's
    limit has passed. An error costs more than a wait: a drone whose record ends too early is
    stopped as an orphan when it is listed again, with its jobs.
    """
    ordered_at = (
        drone.since if drone.state is S.REQUESTED else drone.submitted_at or drone.requested_at
    )
    if view.taken_at <= ordered_at:
        return drone, None  # the listing began before the order was answered
    if drone.state is S.REQUESTED:
        waited_s = now - ordered_at
        limit_s = policy.order_confirm_s
        if waited_s <= limit_s:
            return drone, None
        return ended_record(drone, drone.leaving or S.FAILED, now), reasons.NeverArrived(
            waited_s, limit_s
        )
    if not drone.missing_at:
        return replace(drone, missing_at=view.taken_at), reasons.NotInListing()
    if slot is not None and slot.heard_at > drone.missing_at:
        return drone, None  # the pool has heard from it since: the listing is wrong
    limit = policy.order_confirm_s if drone.state is S.SUBMITTED else policy.missing_s
    # A small site has too few drones for ``VANISHED_MIN_DRONES``: an empty listing is doubtful for
    # a drone that it used to list, even if few are on record. A drone that leaves may well be the
    # last one there.
    empty = not view.drones and drone.leaving is None and drone.state is not S.SUBMITTED
    if doubted or empty:
        limit *= VANISHED_WAIT_FACTOR
    missing = view.taken_at - drone.missing_at
    if missing < limit:
        return drone, None
    unknown = S.DONE if drone.is_leaving and drone.busy_at else S.LOST
    return ended_record(drone, drone.leaving or unknown, now), reasons.Disappeared(missing, limit)


def _in_pool(
    drone: Drone, slot: Slot, reason: Reason | None, now: float, *, any_optional: bool
) -> tuple[Drone, Reason | None]:
    """Return the drone as its slot shows it.

    A slot proves that the drone was started, and jobs in it that it has been busy: these times are
    set once and stay. The number of jobs and the work at stake are those of this slot ad.
    ``heard_at`` alone is no news: it is recorded now and then, as each record is a write.
    """
    state = _state_in_pool(drone, slot)
    busy_at = drone.busy_at or (now if _has_worked(drone, slot) else 0.0)
    returned = drone.state is S.DRAINING and state is not S.DRAINING
    leaving = None if returned else drone.leaving
    if state is S.DRAINING and leaving is None:
        # it leaves by itself: end of life, or its own time-out
        leaving = S.DONE if busy_at else S.UNUSED
    refusal = (
        drone.drain_refusal if state is S.DRAINING and slot.state is not SlotState.DRAINING else ""
    )
    seen = _with(
        drone,
        state=state,
        since=drone.since if state is drone.state else now,
        joined_at=drone.joined_at or now,
        started_at=drone.started_at or now,
        submitted_at=drone.submitted_at or now,
        busy_at=busy_at,
        idle_at=_idle_at(drone, slot, now, any_optional=any_optional),
        jobs=slot.jobs,
        jobs_started=max(slot.jobs_started, drone.jobs_started),
        leaving=leaving,
        unslotted_at=0.0,
        retires_at=slot.retires_at,
        slot=slot.name or drone.slot,
        work_gpu_milli=slot.work_gpu_milli,
        work_at=slot.work_at,
        drain_refusal=refusal,
    )
    heard_at = max(slot.heard_at, drone.heard_at)
    if seen is drone and heard_at - drone.heard_at < HEARTBEAT_RECORD_INTERVAL_S:
        return drone, reason
    seen = _with(seen, heard_at=heard_at)
    if state is not drone.state or reason is None:
        reason = _seen_in_pool(drone, slot, now)
    return seen, reason


def _state_in_pool(drone: Drone, slot: Slot) -> DroneState:
    """Return the state that a slot shows, or the drone's own where the slot says nothing about it."""
    state = BY_SLOT.get((drone.state, slot.state), drone.state)
    if drone.state is S.DRAINING and drone.asked_at:
        return drone.state  # asked to leave: what its slot does meanwhile is no news
    if drone.state is S.QUEUED and drone.started_at:
        return drone.state  # put back by its site: an old slot ad must not bring it to life
    if state is S.DRAINING and drone.state in (S.IDLE, S.BUSY) and slot.heard_at < drone.since:
        return drone.state  # an ad from before the drone was taken back into service
    return state


def _is_working(slot: Slot) -> bool:
    return slot.jobs > 0 or slot.state is SlotState.BUSY


def _has_worked(drone: Drone, slot: Slot) -> bool:
    """Return True if a job runs, or has come since the last view."""
    return _is_working(slot) or slot.jobs_started > drone.jobs_started


def _idle_at(drone: Drone, slot: Slot, now: float, *, any_optional: bool) -> float:
    """Return the time since which no job has needed the drone; 0 if one does, or it accepts none yet."""
    idle_at = drone.idle_at if drone.joined_at else 0.0
    if _is_working(slot):
        if drone.service:
            return 0.0
        # A GPU that only optional jobs use is idle for the planner.
        if slot.only_optional and drone.gpu_milli:
            return idle_at or now
        return idle_at if _is_unknown_work(drone, slot, now, any_optional=any_optional) else 0.0
    if not drone.jobs and _has_worked(drone, slot):  # a job came and went between two polls
        return max(slot.idle_since, drone.since) if slot.idle_since else now
    # HTCondor's ad at the end of a job still has the idle time of before it (NumDynamicSlotsTime
    # of the claim).
    return idle_at or (now if drone.jobs or slot.state is not SlotState.CHECKING else 0.0)


def _is_unknown_work(drone: Drone, slot: Slot, now: float, *, any_optional: bool) -> bool:
    """Return True while the queue does not show yet what a claim runs."""
    if slot.work_at:
        return False
    if drone.state is S.IDLE:
        return any_optional
    recent = now - drone.since <= CLAIM_UNKNOWN_S
    return drone.state is S.BUSY and (drone.work_at > 0 or recent)


def _with_lost_work(
    drone: Drone,
    slot: Slot | None,
    evictions: Sequence[Eviction] | None,
    policy: SitePolicy,
    at: float,
) -> Drone:
    """Return the drone with the work that its end at ``at`` has cost.

    The queue of the jobs knows best. If it reports nothing, or the job's lease still runs, the loss
    is the work so far.
    """
    # What a user took out of it earlier in its life is not the price of its end.
    since = (drone.notice_at or at - policy.grace_s) - EVICTION_SLACK_S
    of_its_end = [e for e in evictions or () if e.at >= since]
    if of_its_end:
        lost = sum(e.gpu_milli / model.WHOLE_GPU * e.lost_s for e in of_its_end)
        return replace(drone, lost_gpu_s=lost, lost_jobs=len(of_its_end))
    reported = evictions is not None and (slot is None or not slot.work_gpu_milli)
    if reported or not drone.jobs or not drone.work_at:
        return drone
    lost = drone.work_gpu_milli / model.WHOLE_GPU * max(0.0, at - drone.work_at)
    return replace(drone, lost_gpu_s=lost, lost_jobs=drone.jobs)


def _ended(
    drone: Drone,
    remote: RemoteDrone,
    slot: Slot | None,
    evictions: Sequence[Eviction] | None,
    policy: SitePolicy,
    now: float,
) -> StateChange:
    """Return the change of a drone whose end its site reports."""
    how = remote.end or RemoteEnd(EndKind.FAULT, 0.0, None, "its site does not say how")
    at = how.at or now
    drone = _with_lost_work(drone, slot, evictions, policy, at)
    in_order = how.kind is EndKind.EXITED and how.exit_code == 0
    if in_order and evictions is not None and not drone.lost_jobs:
        drone = replace(drone, jobs=0)  # they were done between two polls
    lived = max(0.0, at - drone.started_at) if drone.started_at else 0.0
    ended = ended_record(drone, end_state(drone, how), now, how.message)
    # It may have run and gone between two polls: that it ran at all is known now.
    if not ended.started_at and how.kind is EndKind.EXITED:
        ended = replace(ended, started_at=at)
    reason: Reason
    if ended.state is S.PREEMPTED:
        notice_s = max(0.0, at - drone.notice_at) if drone.notice_at else 0.0
        unit = "GPU-seconds" if drone.gpu_milli else "CPU-seconds"
        reason = reasons.Preempted(
            how.message, notice_s, policy.grace_s, drone.lost_gpu_s, drone.lost_jobs, unit
        )
    else:
        fault = how.fault.value if how.fault else ""
        reason = reasons.EndedAtSite(
            how.kind.value, how.exit_code, how.message, lived, drone.jobs_started, fault
        )
    return StateChange(ended, drone.state, reason)


def end_state(drone: Drone, how: RemoteEnd) -> DroneState:
    """Return the final state of a drone by the site's report and what the drone was asked to do."""
    worked = drone.busy_at > 0 or drone.jobs_started > 0
    match how.kind:
        case EndKind.PREEMPTED:
            return S.PREEMPTED
        case EndKind.FAULT:
            return drone.leaving or S.FAILED
        case EndKind.STOPPED:
            return drone.leaving or (S.DONE if worked else S.CANCELLED)
        case EndKind.EXITED:
            if how.exit_code and drone.leaving is None:
                return (
                    S.JOIN_TIMEOUT
                    if how.exit_code == EXIT_JOIN_TIMEOUT and not drone.joined_at
                    else S.FAILED
                )
            return drone.leaving or (S.DONE if worked else S.UNUSED)


def ended_record(drone: Drone, state: DroneState, now: float, message: str = "") -> Drone:
    """Return the record of a drone that is gone."""
    # One that found work after all is not unused; one that was asked to leave and finished its jobs
    # first is done.
    if drone.busy_at and (state is S.UNUSED or (state is S.CANCELLED and not drone.jobs)):
        state = S.DONE
    return replace(
        drone,
        state=state,
        since=now,
        ended_at=now,
        jobs=0,
        site_reason=message or drone.site_reason,
    )


def undrained_record(drone: Drone, now: float) -> Drone:
    """Return the record of a draining drone that is taken back into service."""
    state, idle_at = (S.BUSY, 0.0) if drone.jobs else (S.IDLE, now)
    return replace(
        drone, state=state, since=now, leaving=None, asked_at=0.0, asked=0, idle_at=idle_at
    )


_DRONE_TIMES = (
    *(
        "since",
        "requested_at",
        "submitted_at",
        "started_at",
        "joined_at",
        "busy_at",
        "idle_at",
        "heard_at",
    ),
    *("missing_at", "unslotted_at", "asked_at", "notice_at", "work_at"),
)


def shift_drone(drone: Drone, by_s: float, now: float) -> Drone:
    """Return the drone with its times shifted by ``by_s``, none later than ``now``, after a change of the clock."""
    known = ((name, getattr(drone, name)) for name in _DRONE_TIMES)
    return replace(drone, **{name: min(now, at + by_s) for name, at in known if at})


def apply_start_result(drone: Drone, result: OrderResult, now: float) -> StateChange | None:
    """Return the change that the result of a start order causes.

    After an unknown outcome the drone stays ``requested`` and counts until a listing resolves it.
    Such a listing begins after the answer; it is awaited for ``order_confirm_s`` from then on,
    since the order may have gone out just before.
    """
    remote_id = result.remote_id or drone.remote_id
    match result.answer:
        case OrderOutcome.OK:
            after = replace(
                drone, state=S.SUBMITTED, since=now, submitted_at=now, remote_id=remote_id
            )
            return StateChange(after, drone.state, reasons.Accepted(remote_id))
        case OrderOutcome.REJECTED:
            return StateChange(
                ended_record(drone, S.FAILED, now, _message(result)), drone.state, _failure(result)
            )
        case OrderOutcome.UNKNOWN:
            after = replace(drone, since=now, site_reason=_message(result))
            return StateChange(after, drone.state, _failure(result))


def apply_stop_result(drone: Drone, result: OrderResult) -> StateChange | None:
    """Return the change that the result of a stop order causes: only failures are recorded."""
    if result.answer is OrderOutcome.OK:
        return None
    return StateChange(replace(drone, site_reason=_message(result)), drone.state, _failure(result))


def apply_drain_result(drone: Drone, result: OrderResult) -> StateChange | None:
    """Return the change that the result of a drain order causes: only failures are recorded.

    If the drain of an idle drone is refused, the site stops it. A busy one is asked again
    (:mod:`retirement`).
    """
    if result.answer is OrderOutcome.OK or drone.state is S.STOPPING:
        return None
    after = replace(drone, drain_refusal=_message(result))
    reason = _failure(result)
    if isinstance(reason, reasons.OrderRefused):
        asked = drone.asked + 1 if drone.state is S.DRAINING else drone.asked
        after = replace(after, drain_refusal=reason.message or "no reason given", asked=asked)
        reason = reasons.DrainRefused(reason.fault, reason.message)
    return StateChange(after, drone.state, reason) if after != drone else None


def _message(result: OrderResult) -> str:
    return result.fault.message if result.fault else ""


def _failure(result: OrderResult) -> Reason:
    if result.answer is OrderOutcome.UNKNOWN:
        return reasons.OutcomeUnknown(_message(result))
    return reasons.OrderRefused(
        result.fault.kind.value if result.fault else "unknown", _message(result)
    )
