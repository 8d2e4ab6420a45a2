"""Reports of what begins or ceases, as events, each once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from provisioner import descriptions, formatting, model, reasons
from provisioner.controller.journal import EventWriter
from provisioner.controller.orphans import record_of
from provisioner.model import Plan, RemoteDrone, Snapshot
from provisioner.planner.safeguards import SafePlan
from provisioner.reasons import Reason
from provisioner.values import define, factory


@define
class Reports:
    """Reports of credentials, orphans, twins, plans and their breaches."""

    event: EventWriter
    _faults: tuple[str, ...] = ()
    """Breaches at the newest tick, so that each is reported once and not at every tick."""
    _credential_troubles: dict[tuple[str, str], bool] = factory(dict)
    """Credentials, by user and name, that are reported: True for one that cannot be used."""
    _twins: frozenset[str] = frozenset()
    """Records of other living controllers of this name, which were reported."""

    async def credentials(self, snapshot: Snapshot) -> None:
        """Report each credential that begins or ceases to be a trouble, once."""
        now = snapshot.now + snapshot.drift_s
        before = self._credential_troubles
        self._credential_troubles = {}
        for each in snapshot.credentials:
            key = each.used_by, each.name
            dead = each.is_dead(now)
            why = descriptions.credential_trouble(each, now)
            user, name = key
            if why:
                self._credential_troubles[key] = dead
            if why and before.get(key) is not dead:
                await self.event(
                    "credential.unusable" if dead else "credential.expires",
                    warn=True,
                    used_by=user,
                    credential=name,
                    why=why,
                )
            elif key in before and not why:
                await self.event("credential.renewed", used_by=user, credential=name)

    async def orphans(self, found: Iterable[RemoteDrone]) -> None:
        """Report orphans that are new, in one event for each record that they belong to."""
        new: dict[str, list[str]] = {}
        for drone in found:
            named = f"{drone.drone_id} (epoch {drone.epoch})" if drone.epoch else drone.drone_id
            new.setdefault(record_of(drone.drone_id), []).append(named)
        for record, ids in new.items():
            named = ", ".join(sorted(ids))[:2000]
            await self.event("orphan.found", warn=True, record=record, drones=len(ids), ids=named)

    async def twins(self, twins: Mapping[str, str]) -> None:
        for record in twins.keys() - self._twins:
            await self.event(
                "controller.twin_found", warn=True, record=record, evidence=twins[record]
            )
        if self._twins and not twins:
            await self.event("controller.twin_gone", records=", ".join(sorted(self._twins)))
        self._twins = frozenset(twins)

    async def breaches(self, found: SafePlan, snapshot: Snapshot) -> None:
        if found.faults and found.faults != self._faults:
            names = descriptions.ClassNames(snapshot.overlay.view)
            left_out = (*(f"class {names.of(each)}" for each in found.classes), *found.actions)
            await self.event(
                "plan.rejected",
                warn=True,
                faults="; ".join(found.faults)[:2000],
                left_out=", ".join(left_out)[:2000],
            )
        elif self._faults and not found.faults:
            await self.event("plan.accepted")
        self._faults = found.faults

    async def plan(self, plan: Plan, snapshot: Snapshot) -> None:
        """Report the orphans that a plan on record stops or adopts, drones that somebody else stopped, and faults."""
        for orphan in plan.orphans:
            why = orphan.reason.describe()
            await self.event(
                "orphan.stop_ordered", drone=orphan.drone_id, site=orphan.site, why=why
            )
        for move in plan.moves:
            before = snapshot.drones.get(move.drone.id)
            if before is None:
                await self.event("orphan.adopted", drone=move.drone.id, why=move.reason.describe())
            elif _stopped_elsewhere(before, move.reason):
                why = move.reason.describe()
                await self.event(
                    "drone.stopped_elsewhere", warn=True, drone=before.id, site=before.site, why=why
                )
        for drain in plan.drains:
            if isinstance(drain.reason, reasons.BlackHoleDrone):
                why = drain.reason.describe()
                await self.event("drone.black_hole", warn=True, drone=drain.drone.id, why=why)
        for breaker in plan.breakers:
            recorded = snapshot.breakers.get(breaker.scope)
            known = recorded.faults if recorded is not None else ()
            for fault in breaker.faults:
                if fault in known or fault.blame is model.Blame.SETTLED:
                    continue
                await self.event(
                    "job.faulted" if fault.blame is model.Blame.JOB else "job.collateral",
                    job=fault.job_id,
                    drone=fault.drone_id,
                    user=fault.owner,
                    why=formatting.excerpt(fault.cause),
                )


def _stopped_elsewhere(drone: model.Drone, reason: Reason) -> bool:
    """Return True if a drone was stopped at its site and neither this controller nor the site's owner asked for it."""
    stopped = isinstance(reason, reasons.EndedAtSite) and reason.end == model.EndKind.STOPPED
    return stopped and not drone.asked_at and not drone.notice_at
