"""What the adapter asks of HTCondor, whatever the way there: the Python bindings, or the tools here or over ssh.

Ads are ``classad2.ClassAd`` both ways (the tools print ``-long``). Errors are the four of
:mod:`provisioner.interfaces`:
``UnavailableError`` if nothing answered, ``AuthError`` for credentials, ``RejectedError`` if HTCondor said no,
``OutcomeUnknownError`` for a
write of which nobody knows whether it happened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from adapters.htcondor.site.owner_queue import Queue
from adapters.shared.htcondor.ads import Ad
from provisioner.model import DroneId


@dataclass(frozen=True, slots=True)
class Submission:
    """One cluster of jobs: ``condor_submit`` of ``description`` with ``queue <columns> from <rows>``."""

    description: str
    """Submit commands, a line each, without ``queue``. The cluster defines two macros above them, absolute paths where
    the submitter runs: ``$(inputs)``, the directory that holds ``files``, and ``$(outputs)``, in which it has made a
    directory for each drone, named by its id. ``$(column)`` stands for a row's value; the first column is ``drone_id``.
    """
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """One job each; values hold no blank, comma, quote, ``$`` or line break."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Files that the jobs take along, by relative name, mode 0600 (0700 those that end in ``.sh``); may be secret."""

    @property
    def digest(self) -> str:
        """Names the files: the same name is the same content."""
        return digest(self.files)


def digest(files: Mapping[str, bytes]) -> str:
    """A short name of some files and all that is in them."""
    found = hashlib.sha256()
    for name, content in sorted(files.items()):
        found.update(f"{len(name)} {name} {len(content)} ".encode() + content)
    return found.hexdigest()[:24]


class Cluster(Protocol):
    """One schedd that drones are submitted to, and the pool that it belongs to."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def jobs(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        """Jobs in our schedd's queue. An empty answer is one that HTCondor gave: silence is ``UnavailableError``."""
        ...

    async def slots(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        """Startd ads of the site's collector; an empty projection is all attributes."""
        ...

    async def owner_queue(self, schedd: str, constraint: str, names: Sequence[str]) -> Queue:
        """Jobs in the queue of another schedd, one of ``owner.schedds``, with the attributes ``names`` beside the usual
        ones. Grouped aside of the event loop. One that is silent holds up no other call."""
        ...

    async def submitters(self, projection: Sequence[str]) -> Sequence[Ad]:
        """Submitter ads of the site's collector: how many jobs of each user wait and run."""
        ...

    async def submit(self, batch: Submission) -> int:
        """The cluster id. All or nothing; ``OutcomeUnknownError`` if the answer did not come."""
        ...

    async def collect(self, job_ids: Mapping[DroneId, str]) -> Mapping[DroneId, str]:
        """Bring home, where files are spooled, what ended drones have left (their log, their outcome). Answers why not
        for each that it could not; a few at a call, and none may take long."""
        ...

    async def tidy(self, inputs_in_use: Collection[str], drones: Collection[DroneId]) -> None:
        """Forget the files of submissions whose :attr:`Submission.digest` is not in use, and what drones that are not
        listed any more had left, both an hour after they were last touched."""
        ...

    async def remove(self, job_ids: Sequence[str], why: str, *, force: bool = False) -> None:
        """``condor_rm``: notice and the site's grace. ``force``: out of the queue, whatever the node says. Jobs that
        are not there any more are no error."""
        ...
