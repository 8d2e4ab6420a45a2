"""A controller that stands by: it polls what the leader polls, so that a take-over is one tick.

It decides nothing, and its polls change nothing (:data:`provisioner.interfaces.OBSERVING`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from provisioner.controller.clock import Clock
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.polling import SERVICES_DEADLINE_S, Poller, PollTarget
from provisioner.interfaces import OBSERVING, Overlay, Site
from provisioner.model import DroneType, Fault, OverlayView, Policy, ServicesView, SiteView
from provisioner.values import define


@define
class Standby:
    """The polls of one configuration."""

    policy: Policy
    types: Sequence[DroneType]
    overlay: Overlay
    sites: Mapping[str, Site]
    clock: Clock
    poller: Poller | None = None
    """Newest polls; a leader goes on with their views."""
    threaded: bool = True
    poll_services: Callable[[], Awaitable[ServicesView]] | None = None

    async def run(self, until: asyncio.Event) -> None:
        """Poll until ``until`` is set."""
        observing = OBSERVING.set(True)
        compute = ComputeThread(self.threaded)
        try:
            async with asyncio.TaskGroup() as group:
                self.poller = poller = self._poller(group, compute)
                over = group.create_task(until.wait(), name="standby")
                while not over.done():
                    polls = group.create_task(poller.poll({}), name="standby-polls")
                    await asyncio.wait({polls, over}, return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.wait({over}, timeout=self.policy.interval_s)
                    polls.cancel()
                poller.close()
        finally:
            compute.close()
            OBSERVING.reset(observing)

    def lacks(self) -> tuple[str, ...]:
        """Return the views that a take-over would have to wait for, each with the reason."""
        if self.poller is None:
            return ("every view: it has just begun",)
        states: list[tuple[str, SiteView | OverlayView | ServicesView | None, Fault | None]]
        states = [("overlay", self.poller.overlay.view, self.poller.overlay.fault)]
        if (services := self.poller.services) is not None:
            states.append(("services", services.view, services.fault))
        states += [(name, each.view, each.fault) for name, each in self.poller.sites.items()]
        return tuple(
            f"{name}: {fault.message if fault is not None else 'not polled yet'}"
            for name, view, fault in states
            if view is None or fault is not None
        )

    @property
    def unpolled(self) -> tuple[str, ...]:
        """Return the sites that only the leader polls."""
        policies = map(self.policy.of_site, sorted(self.sites))
        return tuple(each.site for each in policies if each.enabled and not each.standby_polls)

    def _poller(self, group: asyncio.TaskGroup, compute: ComputeThread) -> Poller:
        before = self.poller.sites if self.poller is not None else {}
        kinds = [kind for kind in self.types if kind.server is None]
        overlay = PollTarget("overlay", lambda: self.overlay.poll(kinds), 0.0, kind="overlay")
        overlay.deadline_s = self.policy.overlay_poll_deadline_s
        sites = {}
        for name, site in self.sites.items():
            policy = self.policy.of_site(name)
            known = before.get(name)
            if known is None or known.poll != site.poll:
                known = PollTarget(name, site.poll, policy.poll_deadline_s)
            if policy.standby_polls and policy.enabled:
                sites[name] = known
        poller = Poller(group, self.clock, compute, overlay, sites)
        if self.poll_services is not None:
            poller.services = PollTarget(
                "services", self.poll_services, SERVICES_DEADLINE_S, kind="services"
            )
        return poller
