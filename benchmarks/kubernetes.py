"""Pods of drones at a real API server, 1,000 and 5,000: the first list, polls, and changes that a watch reports.

The adapter as shipped, before the lab's control plane (tests/labs/kubernetes.py); only the adapter's own thread is
measured. Without a control plane that `make kubernetes` has built there are no figures.

    kubernetes.py
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from dataclasses import dataclass

from benchmarks.cost import Figure, tell
from tests.labs.htcondor import LabError, until
from tests.labs.kubernetes import Kubernetes, KubernetesLab, running_kubernetes
from tests.labs.kubernetes_sites import KubernetesWorld, many_pods

FEW, MANY = 1000, 5000
POLLS = 20
CHANGED = 500
US = "bench"


@dataclass(frozen=True, slots=True)
class Poll:
    """Processor time of the adapter's thread, seconds, and calls."""

    first_s: float
    pages: int
    later_s: float
    calls: int
    change_s: float


async def polls(lab: KubernetesLab) -> Poll:
    """The first poll, the median of later ones, and the share of one change."""
    lab.front.calls.clear()
    async with KubernetesWorld(lab, US).site() as site:
        begin = time.thread_time()
        seen = len((await site.poll()).drones)
        first_s = time.thread_time() - begin
        ours = f"{lab.ours}/pods?"
        pages = len(
            [path for _, path in lab.front.calls if path.startswith(ours) and "limit=" in path]
        )
        await asyncio.to_thread(
            until, lambda: any("watch=1" in p for _, p in lab.front.calls), what="a watch"
        )
        await asyncio.sleep(2)
        lab.front.calls.clear()
        seconds = []
        for _ in range(POLLS):
            begin = time.thread_time()
            assert len((await site.poll()).drones) == seen
            seconds.append(time.thread_time() - begin)
        calls = len([path for _, path in lab.front.calls if "watch=1" not in path])
        begin = time.thread_time()
        await asyncio.to_thread(change, lab)
        await asyncio.sleep(2)
        change_s = (time.thread_time() - begin) / CHANGED
    return Poll(first_s, pages, statistics.median(seconds), calls, change_s)


def change(lab: KubernetesLab) -> None:
    """Change a label of some pods."""
    for number in range(CHANGED):
        body = {"metadata": {"labels": {"changed": "yes"}}}
        lab.call("PATCH", f"{lab.ours}/pods/{US}-{number}", body, "application/merge-patch+json")


def measured(lab: KubernetesLab, count: int) -> Poll:
    with many_pods(lab, US, count):
        return asyncio.run(polls(lab))


def main() -> int:
    try:
        kubernetes = Kubernetes.cached()
    except LabError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    with running_kubernetes(kubernetes) as lab:
        few, many = measured(lab, FEW), measured(lab, MANY)
    tell(
        Figure(f"a Kubernetes site with {FEW:,} pods: processor time of a poll", few.later_s, "s"),
        Figure("  calls beside watches, by 20 polls", few.calls, "", "0"),
        Figure("  processor time of one change that a watch reports", few.change_s, "s"),
        Figure(f"  the first list of {MANY:,} pods: processor time", many.first_s, "s"),
        Figure("  its pages", many.pages, "", "10"),
        Figure(
            f"  processor time of a poll with {MANY:,}, to that with {FEW:,}",
            many.later_s / few.later_s,
            "times",
        ),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
