"""Users for traces that have none: jobs are dealt to users by a seeded rule, runs of similar jobs to one user.

A *campaign* is a run of similar jobs of one user. In the order of submission, a job joins the
campaign whose newest job took between half and twice as long and was submitted in the last six
hours; among several, the one with the newest job. A job that finds none begins a campaign of a user
who is drawn: the n-th user with a weight of 1/n (Zipf), so that a few users have most of the jobs.
A user may have several campaigns at once. Jobs of different lengths that alternate in the trace
therefore go to different users.

The rule uses run times, so these users differ more in them than real users may. The trace as it is
(one user) and these users are the two bounds of what a planner can learn from users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from provisioner.simulator.jobs import SimulatedJob

SIMILAR = 2.0
"""Largest ratio of the run times of two similar jobs that follow each other in a campaign."""
CAMPAIGN_GAP_S = 6 * 3600.0
"""Time after its newest job at which a campaign is over."""


def dealt(jobs: Sequence[SimulatedJob], users: int, seed: int) -> tuple[SimulatedJob, ...]:
    """Return the jobs with ``user1`` to ``user<users>`` as their owners; unchanged for a single user."""
    if users == 1:
        return tuple(jobs)
    rng = Random(f"users {seed}")
    names = [f"user{n}" for n in range(1, users + 1)]
    weights = [1 / n for n in range(1, users + 1)]
    campaigns: list[tuple[SimulatedJob, str]] = []
    """Newest job and user of each, the newest last."""
    found = []
    for job in sorted(jobs, key=lambda job: job.submit_s):
        campaigns = [
            each for each in campaigns if job.submit_s - each[0].submit_s <= CAMPAIGN_GAP_S
        ]
        mine = next((each for each in reversed(campaigns) if _similar(each[0], job)), None)
        if mine is not None:
            campaigns.remove(mine)
        user = mine[1] if mine is not None else rng.choices(names, weights)[0]
        campaigns.append((job, user))
        found.append(replace(job, wants=replace(job.wants, owner=user)))
    return tuple(found)


def _similar(one: SimulatedJob, other: SimulatedJob) -> bool:
    shorter_s, longer_s = sorted((max(1.0, one.duration_s), max(1.0, other.duration_s)))
    return longer_s <= SIMILAR * shorter_s
