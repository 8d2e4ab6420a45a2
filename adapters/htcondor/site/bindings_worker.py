"""The worker process with HTCondor's Python bindings, which block: one schedd and its collector."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import classad2
import htcondor2

from adapters.htcondor.classads import Ad, text
from adapters.htcondor.daemons import BindingsErrors, Collectors
from adapters.htcondor.site.owner_queue import OWNER_JOB_PROJECTION, OwnerJobQueue, group_jobs
from adapters.htcondor.site.submission import of_drones
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind

_REFUSAL = re.compile(r"errmsg=|SCHEDD:\d+:|Submit:-?\d+:|Schedd says -\d+")
_REFUSAL_KINDS = (
    (re.compile("Failed to connect"), FaultKind.DOWN),
    (
        re.compile(r"SCHEDD:13:|Schedd says -[56]\b"),
        FaultKind.DENIED,
    ),  # EACCES: this identity cannot own jobs; disabled
    (re.compile(r"Schedd says -[234]\b|MAX_JOBS|exceed|quota", re.IGNORECASE), FaultKind.QUOTA),
)
"""Kinds by words of a refusal, first match; else the order itself is wrong. -2 to -4: MAX_JOBS_SUBMITTED, _PER_OWNER
and _PER_SUBMISSION."""


class BindingsWorker:
    """Server of the calls of :class:`adapters.htcondor.site.client.BindingsClient`."""

    def __init__(self, collector: str, schedd: str) -> None:
        self._address, self._name = collector, schedd
        self._errors = BindingsErrors()
        self._collector = Collectors(collector)
        self._schedds: dict[str, Any] = {}

    def jobs(self, schedd: str, constraint: str, projection: Sequence[str]) -> list[Ad]:
        """Return jobs of a schedd; ``schedd`` "" is ours."""
        return list(self._asked(schedd, lambda it: it.query(constraint, projection=list(projection))))

    def owner_queue(self, schedd: str, constraint: str, names: Sequence[str]) -> OwnerJobQueue:
        return group_jobs(self.jobs(schedd, constraint, (*OWNER_JOB_PROJECTION, *names)), names)

    def slots(self, constraint: str, projection: Sequence[str]) -> list[Ad]:
        return self._listed(htcondor2.AdType.Startd, constraint, projection)

    def submitters(self, projection: Sequence[str]) -> list[Ad]:
        return self._listed(htcondor2.AdType.Submitter, "true", projection)

    def _listed(self, what: Any, constraint: str, projection: Sequence[str] = ()) -> list[Ad]:
        with self._errors.translated(f"collector {self._address}"):
            return list(self._collector.query(what, constraint=constraint, projection=list(projection)))

    def _asked(self, name: str, question: Any) -> Any:
        """Ask a schedd. A restarted one has another address: it is looked up again when it does not answer."""
        known = name in self._schedds
        try:
            with self._errors.translated(f"schedd {name or self._name or 'of the site'}"):
                return question(self._schedd(name))
        except UnavailableError:
            self._schedds.pop(name, None)
            if not known:
                raise
        with self._errors.translated(f"schedd {name or self._name or 'of the site'}"):
            return question(self._schedd(name))

    def _schedd(self, name: str) -> Any:
        if name not in self._schedds:
            self._schedds[name] = htcondor2.Schedd(self._located(name or self._name))
        return self._schedds[name]

    def _located(self, name: str) -> Ad:
        ads = self._listed(htcondor2.AdType.Schedd, "true")
        named = [ad for ad in ads if not name or text(ad, "Name", 600) == name]
        if not named and name:  # one that flocks here may advertise its users only
            named = self._listed(htcondor2.AdType.Submitter, f"ScheddName == {classad2.quote(name)}")
        if not named:
            raise UnavailableError(
                f"collector {self._address} does not list {f'schedd {name}' if name else 'any schedd'}"
            )
        if not name and len(named) > 1:
            some = ", ".join(sorted(printable(text(ad, "Name", 600), 80) for ad in named)[:5])
            raise RejectedError(
                f"collector {self._address} lists several schedds: set `schedd` ({some})", FaultKind.CONFIG
            )
        return named[0]

    def submit(self, description: str, drone_ids: Sequence[str], spool: bool) -> int:
        """Submit all drones or none, and return the cluster id.

        A refusal is one that the schedd gave, or that a question afterwards confirms.
        """
        schedd = self._schedd("")
        items = ({"drone_id": drone_id} for drone_id in drone_ids)
        try:
            with self._errors.translated("submit"):
                result = schedd.submit(htcondor2.Submit(description), spool=spool, itemdata=items)
        except (ValueError, TypeError) as error:
            raise RejectedError(f"submit: {printable(str(error), 300)}", FaultKind.CONFIG) from None
        except AuthError:
            raise
        except UnavailableError as error:
            raise self._not_submitted(error, drone_ids) from None
        if spool:
            try:
                with self._errors.translated("spooling"):
                    schedd.spool(result)
            except AdapterError as error:
                raise self._withdraw(result.cluster(), error) from None
        return int(result.cluster())

    def _not_submitted(self, error: UnavailableError, drone_ids: Sequence[str]) -> AdapterError:
        """Return RejectedError if the schedd refused and a question confirms that no job is there."""
        if not _REFUSAL.search(str(error)):
            return OutcomeUnknownError(str(error))
        try:
            there = self.jobs("", of_drones(drone_ids), ["ClusterId"])
        except AdapterError:
            return OutcomeUnknownError(str(error))
        if there:
            return OutcomeUnknownError(str(error))
        kinds = (kind for sign, kind in _REFUSAL_KINDS if sign.search(str(error)))
        return RejectedError(str(error), next(kinds, FaultKind.CONFIG))

    def _withdraw(self, cluster: int, error: AdapterError) -> AdapterError:
        """Remove jobs whose files did not arrive: they would never run. If that fails now, their own policy does it."""
        try:
            self._remove(f"ClusterId == {int(cluster)}", "its files could not be sent", False)
        except AdapterError:
            return OutcomeUnknownError(str(error))
        return RejectedError(f"files could not be sent: {error}", FaultKind.DOWN)

    def remove(self, job_ids: Sequence[str], why: str, force: bool) -> None:
        """Remove jobs. Those that are gone are no error."""
        self._remove(list(job_ids), why, force)

    def _remove(self, which: list[str] | str, why: str, force: bool) -> None:
        action = htcondor2.JobAction.RemoveX if force else htcondor2.JobAction.Remove

        def ask(schedd: Any) -> Mapping[str, int]:
            answer = schedd.act(action, which, reason=(why, 0))
            return {} if answer is None else {str(name): int(count) for name, count in answer.items()}

        answer = self._asked("", ask)
        if answer.get("TotalPermissionDenied"):
            raise AuthError(f"the schedd does not let us remove {answer['TotalPermissionDenied']} of our jobs")
        if answer.get("TotalError"):
            raise OutcomeUnknownError(f"the schedd could not remove {answer['TotalError']} of our jobs")

    def collect(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Fetch what spooled jobs have left, one by one: of those asked for together one failure ends all."""
        failed = {}
        for job_id in job_ids:
            try:
                self._asked("", lambda schedd, job_id=job_id: schedd.retrieve([job_id]))
            except AdapterError as error:
                failed[job_id] = str(error)
        return failed
