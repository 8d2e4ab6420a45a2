"""Two thousand drones asked for at once and withdrawn again: in a handful of calls, never one for each drone."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.labs.controller import LabController
from tests.labs.horeka import horeka
from tests.labs.htcondor import Condor, children_of, until
from tests.labs.slurm import SlurmLab
from tests.labs.slurm_call_log import Call, CountedTools

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("slurm"), pytest.mark.slow]

DRONES = 2000
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    """What a part of the story took, for people to read: none of it is judged but the calls."""

    what: str
    seconds: float = 0.0
    ticks: int = 0
    """At least so many began in it; one more may be cut by its begin, and one by its end."""
    controller_s: float = 0.0
    """Processor time of the controller and of its child, which talks to the pool."""
    tools_s: float = 0.0
    """Processor time of the tools, the lab's way into the cluster and the counting included."""
    calls: list[Call] = field(default_factory=list)

    @property
    def by_tool(self) -> Counter[str]:
        return Counter(call.tool for call in self.calls)

    def __str__(self) -> str:
        ticks = max(1, self.ticks)
        listed = sum(call.answer for call in self.calls if call.tool == "squeue")
        return (
            f"{self.what}: {self.seconds:.1f} s, {self.ticks} ticks, {dict(self.by_tool)}; per tick"
            f" {listed / ticks:,.0f} bytes of squeue, {sum(call.answer for call in self.calls) / ticks:,.0f} of all"
            f" tools, {self.controller_s / ticks * 1000:.0f} ms processor time of the controller,"
            f" {self.tools_s / ticks * 1000:.0f} ms of the tools"
        )


def processor_s(controller: LabController) -> tuple[float, float]:
    """Of a controller and its living children, and of its children that have ended: its calls of tools."""
    assert controller.process is not None
    own, ended = _processor_s(controller.process.pid)
    for pid in children_of(controller.process.pid):
        with suppress(OSError):
            own += _processor_s(pid)[0]
    return own, ended


def _processor_s(pid: int) -> tuple[float, float]:
    user, system, ended_user, ended_system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    return (int(user) + int(system)) * TICK_S, (int(ended_user) + int(ended_system)) * TICK_S


@contextmanager
def costed(what: str, controller: LabController, tools: CountedTools) -> Iterator[Cost]:
    cost = Cost(what)
    begin, tick, before = time.monotonic(), controller.tick, len(tools.calls())
    own, ended = processor_s(controller)
    yield cost
    own_after, ended_after = processor_s(controller)
    cost.calls = tools.calls(before)
    cost.seconds, cost.ticks = time.monotonic() - begin, controller.tick - tick
    cost.controller_s, cost.tools_s = own_after - own, ended_after - ended
    print(cost)


@pytest.mark.matrix
def test_two_thousand_drones_are_asked_for_and_withdrawn(
    newest_condor: Condor, new_slurm: Callable[..., SlurmLab]
) -> None:
    cluster = new_slurm(a100=1, h100=0, rest=False, ssh=False)
    tools = CountedTools(cluster)
    # All GPUs are the owner's: drones wait for their turn.
    held = cluster.sbatch("#!/bin/sh\nexec sleep 3600\n", "-p", "accelerated", "--gres=gpu:a100:4", user="owner")
    cluster.reaches(held, "RUNNING")
    options = {
        "tools": {"bin": str(tools.directory)},
        "types": {"a100": {"partition": "accelerated"}},
        "deadline": "18s",
    }
    with horeka(newest_condor, cluster, "tools", most=DRONES + 500, options=options) as lab:
        controller = lab.controller
        controller.write()
        # A look at so many jobs may take long on a busy host.
        config = controller.config.read_text().replace("overlay_max_age: 12s", "overlay_max_age: 60s")
        controller.config.write_text(f"{config}  max_drones: {DRONES + 500}\n")
        with (controller.directory / "site-horeka.yaml").open("a") as site:
            site.write("queue_when_full: true\n")
        controller.start(write=False)

        with costed("asked for", controller, tools) as asked:
            jobs = lab.submit(DRONES, more="gpus_minimum_memory = 30000")
            until(lambda: sum(lab.alive().values()) >= DRONES, 60, what="all are at the site", every_s=0.5)
            until(lambda: controller.states() == {"queued": DRONES}, 60, what="all are seen there", every_s=0.5)
        submits = [call for call in asked.calls if call.tool == "sbatch"]
        assert sum(call.tasks for call in submits) == DRONES, "asked for once each"
        assert len(submits) <= 3, "in arrays as large as the cluster takes"
        assert asked.by_tool["squeue"] <= asked.ticks + 1 + 1, "a listing per look, and one before the start"

        with costed("waiting", controller, tools) as waiting:
            controller.ticks(8)
        assert waiting.by_tool["sbatch"] == waiting.by_tool["scancel"] == 0, "nobody else is wanted, and nobody less"
        assert waiting.by_tool["squeue"] <= waiting.ticks + 1, "one listing per look"
        assert lab.alive() == {d["id"]: 1 for d in controller.live()}
        assert len(controller.live()) == DRONES
        reasons = {d["site_reason"] for d in controller.live()}
        assert reasons - {""} and reasons <= {"Resources", "Priority", ""}, "they wait for their turn, no more"

        with costed("cancelled", controller, tools) as withdrawn:
            lab.overlay.remove(jobs)
            until(lambda: not lab.alive(), 90, what="none is at the site", every_s=0.5)
            until(lambda: not controller.live(), 90, what="none on record lives", every_s=0.5)
        assert withdrawn.by_tool["sbatch"] == 0
        assert 1 <= withdrawn.by_tool["scancel"] <= DRONES // 500 + 1
        assert withdrawn.by_tool["squeue"] <= withdrawn.ticks + 1 + 1, "a listing per look, and one before the stop"
        assert controller.states() == {"cancelled": DRONES}
        lab.nothing_left()
