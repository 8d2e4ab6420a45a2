"""CPU work must not starve GPUs: 63 nodes with free GPUs, and work of low priority that would take all their cores.

After marin-community/marin#7916: none of the 63 H100 nodes of a cluster would do, for want of
`cpu`: batch pods of low priority had reserved 6,248 cores, and the jobs that wanted the GPUs waited
for half an hour.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from provisioner.model import Plan, Policy, Reserve, SitePolicy, Snapshot
from provisioner.planner import decide
from provisioner.reasons import GpusStranded, Reason
from provisioner.resources import NO_RESOURCES, Resources
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, SimulationOutcome, simulate
from tests.simulator.worlds import drone_type

NODES, GPUS, CORES = 63, 8, 104
MEMORY_MIB = 1 << 20
COME_S, CPU_WORK_S = 900.0, 7200.0
GANG = JobRequirements(gpu_milli=GPUS * 1000, cpus=64, memory_mib=262144)
BATCH = JobRequirements(gpu_milli=0, cpus=16, memory_mib=16384, owner="batch")
KEPT = Reserve(cpus=8, memory_mib=32768)
SETTLED_S = 300.0
"""A few ticks, the boot and a negotiation."""


@dataclass
class Watched:
    """The planner itself, and what it said."""

    said: set[Reason] = field(default_factory=set)
    cpu_drones: int = 0
    """At most at once."""

    def __call__(self, snapshot: Snapshot) -> Plan:
        plan = decide(snapshot)
        self.cpu_drones = max(
            self.cpu_drones, sum(not drone.gpu_milli for drone in snapshot.drones.values())
        )
        self.said |= {refusal.reason for refusal in plan.refusals}
        return plan


def gpu_starts_s(outcome: SimulationOutcome) -> list[float]:
    return [start_s for submit_s, start_s in outcome.metrics.first_starts if submit_s == COME_S]


def played(*, blocking: bool) -> tuple[Watched, SimulationOutcome]:
    """A cluster full of CPU work, and then a job of eight GPUs for each of its nodes."""
    site = Facility(
        policy=SitePolicy(
            "marin",
            max_drones=1000,
            max_pending=1000,
            max_starts_per_tick=500,
            blocking=(KEPT,) if blocking else (),
            preempt_proactively=False,
        ),
        types=(
            drone_type(
                "marin", "h100", gpu_milli=GPUS * 1000, cpus=64, memory_mib=262144, vram_mib=81559
            ),
            drone_type(
                "marin", "cpu", gpu_milli=0, cpus=16, memory_mib=16384, vram_mib=0, capability=0
            ),
        ),
        pools=(GpuPool("nodes", GPUS, NODES, cpus_per_node=CORES, memory_mib_per_node=MEMORY_MIB),),
        behaviour=SiteBehaviour(boot=Fixed(30.0), check=Fixed(5.0), release=Fixed(2.0)),
        reports_nodes=True,
        blocks=Resources(0, KEPT.cpus, KEPT.memory_mib) if blocking else NO_RESOURCES,
    )
    watched = Watched()
    outcome = simulate(
        Scenario(
            facilities=(site,),
            jobs=(
                *(SimulatedJob(0.0, CPU_WORK_S, BATCH) for _ in range(NODES * CORES // 16)),
                *(SimulatedJob(COME_S, 600.0, GANG) for _ in range(NODES)),
            ),
            policy=Policy(idle_timeout_s=120.0, interval_s=60.0, active_interval_s=60.0),
            limit_s=12 * 3600.0,
            planner=lambda: watched,
        )
    )
    return watched, outcome


def test_without_blocking_cpu_drones_starve_the_gpus_and_the_reason_names_the_cores() -> None:
    watched, outcome = played(blocking=False)
    assert outcome.violations == ()
    assert watched.cpu_drones == NODES * (CORES // 16)
    assert min(gpu_starts_s(outcome)) > CPU_WORK_S, "no GPU job ran before the CPU work was done"
    full = GpusStranded("marin/h100", NODES, float(NODES * GPUS), "cpus", 64, CORES % 16)
    assert full in watched.said


def test_with_blocking_all_gpu_jobs_start_at_once() -> None:
    watched, outcome = played(blocking=True)
    assert outcome.violations == ()
    assert watched.cpu_drones == NODES * ((CORES - GPUS * KEPT.cpus) // 16), (
        "CPU work has what is not kept"
    )
    assert len(gpu_starts_s(outcome)) == NODES and max(gpu_starts_s(outcome)) < COME_S + SETTLED_S
    assert not any(isinstance(reason, GpusStranded) for reason in watched.said)
