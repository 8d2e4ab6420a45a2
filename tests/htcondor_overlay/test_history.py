"""Entries of a schedd's history become completions; the ads are as 23.9.6 and 25.14.1 had them."""

from __future__ import annotations

import classad2
import htcondor2  # noqa: F401 - makes ClassAds know HTCondor's own functions
import pytest

from adapters.htcondor.overlay.history import (
    HISTORY_PROJECTION,
    constraint,
    ended_run,
    stop,
)
from provisioner.model import CompletedJob, DroneId
from tests.htcondor_overlay.jobs import AFFILIATION, ad_of, exprs

DONE = exprs(
    """
    ClusterId = 204; ProcId = 7; JobStatus = 4; CompletionDate = 1500; EnteredCurrentStatus = 1500; QDate = 1000;
    JobCurrentStartDate = 1190; JobCurrentStartExecutingDate = 1200;
    LastRemoteHost = "slot1_1@kit-a-1@node7.example.org"; Owner = "alice"; AcctGroup = "group_a"; RequestGPUs = 1;
    RequestCpus = 4; RequestMemory = ifthenelse(MemoryUsage isnt undefined, MemoryUsage, 1); MemoryUsage = 2048;
    RequestDisk = 10241; RequireGPUs = Capability >= 7.5 && GlobalMemoryMb >= GPUsMinMemory; GPUsMinMemory = 20000;
    Requirements = TARGET.HasCVMFS; AllowedExecuteDuration = 900; LeaveJobInQueue = false; JobUniverse = 5
    """
)


def ad(**attributes: str) -> classad2.ClassAd:
    return ad_of(DONE, attributes)


def told(ahead_s: float = 0.0, **attributes: str) -> CompletedJob | None:
    return ended_run(
        ad(**attributes), "submit.test", "kit", AFFILIATION, lambda theirs: theirs - ahead_s
    )


def holds(expression: str, **attributes: str) -> bool:
    return ad(**attributes, Asked=expression).eval("Asked") is True


def test_a_job_that_failed_is_told_as_failed() -> None:
    for ends, failed in (
        ({"ExitCode": "3"}, True),
        ({"ExitBySignal": "true"}, True),
        ({"ExitCode": "0"}, False),
    ):
        done = told(**ends)
        assert done is not None and done.failed is failed


def test_a_job_that_is_done_is_told_with_all_that_it_asked_for() -> None:
    assert told() == CompletedJob(
        "submit.test#204.7",
        ended_at=1500,
        submitted_at=1000,
        run_s=300,
        gpu_milli=1000,
        cpus=4,
        memory_mib=2048,
        disk_mib=11,
        vram_mib=20000,
        capability=75,
        owner="alice",
        group="group_a",
        walltime_s=900,
        drone_id=DroneId("kit-a-1"),
        splits=False,
        vo="group_a",
        peak_memory_mib=2048,
    )
    share = told(GpuMilli="200", AcctGroup="undefined", LastRemoteHost='"slot1@their-node"')
    assert share is not None and (share.gpu_milli, share.group, share.drone_id) == (200, "", None)


def test_its_run_is_the_last_one_by_our_clock() -> None:
    # of the run before
    again = told(JobCurrentStartDate="1400", JobCurrentStartExecutingDate="1200")
    assert again is not None and again.run_s == 100
    ahead = told(ahead_s=60)
    assert ahead is not None and (ahead.submitted_at, ahead.ended_at, ahead.run_s) == (
        940,
        1440,
        300,
    )


def test_an_entry_that_tells_no_run_is_none() -> None:
    assert told(CompletionDate="0") is told(CompletionDate='real("NaN")') is None
    assert told(JobCurrentStartDate="undefined", JobCurrentStartExecutingDate="undefined") is None


def test_what_anybody_may_write_into_a_job_is_bounded() -> None:
    found = told(
        Owner='"a\\nb"',
        AcctGroup="17",
        RequestMemory='real("INF")',
        RequestCpus="-3",
        RequestDisk="error",
    )
    assert found is not None
    assert found.owner.isprintable() and (
        found.group,
        found.memory_mib,
        found.cpus,
        found.disk_mib,
    ) == ("", 0, 0, 0)


def test_only_jobs_that_count_and_are_done_are_asked_for() -> None:
    asked = constraint('AcctGroup == "group_a"', "kit", 1499.7, gpus_only=True)
    assert holds(asked)
    for other in (
        {"JobStatus": "3"},
        {"CompletionDate": "1498"},
        {"JobUniverse": "7"},
        {"AcctGroup": '"group_b"'},
        {"RequestGPUs": "0"},
        {"RequestGPUs": "undefined"},
    ):
        assert not holds(asked, **other), other
    assert holds(constraint("true", "kit", 1499.7, gpus_only=False), RequestGPUs="undefined")


@pytest.mark.parametrize("managed", ["External", "ScheddDone"])
def test_the_run_of_a_routed_copy_is_not_told_by_its_source_job_again(managed: str) -> None:
    asked = constraint("true", "kit", 1499.7, gpus_only=True)
    assert not holds(asked, Managed=f'"{managed}"', LastRemoteHost="undefined")
    assert holds(asked, Managed=f'"{managed}"'), "anybody may write that into a job that does run"


def test_the_run_of_a_routed_copy_has_the_id_of_its_source_job() -> None:
    routed = ended_run(
        projected(RoutedFromJobId='"17.3"'),
        "submit.test",
        "kit",
        AFFILIATION,
        lambda theirs: theirs,
    )
    assert routed is not None and (routed.job_number, routed.routed_from) == ("204.7", "17.3")
    long = told(RoutedFromJobId=f'"{"7" * 1000}\n"')
    assert long is not None and long.routed_from == "7" * 27 + "..."
    assert told(RoutedFromJobId="17.3") == told()


OPTIONAL = {
    "RequestGPUs": "(TARGET.GPUs ?: 0) > 0 ? 1 : 0",
    "RequiresGPU": '"optional"',
    "GPUsProvisioned": "1",
}


def projected(**attributes: str) -> classad2.ClassAd:
    """Return the part of an ad that a schedd sends."""
    whole, names = ad(**attributes), {name.lower() for name in HISTORY_PROJECTION}
    return classad2.ClassAd({name: whole.lookup(name) for name in whole if name.lower() in names})


def sent(**attributes: str) -> CompletedJob:
    found = ended_run(
        projected(**attributes), "submit.test", "kit", AFFILIATION, lambda theirs: theirs
    )
    assert found is not None
    return found


def test_a_job_with_an_optional_gpu_counts_with_the_gpu_that_it_got() -> None:
    assert holds(constraint("true", "kit", 1499.7, gpus_only=True), **OPTIONAL)
    assert not holds(
        constraint("true", "kit", 1499.7, gpus_only=True), **{**OPTIONAL, "RequestGPUs": "0"}
    )
    assert (sent(**OPTIONAL).gpu_milli, sent(**OPTIONAL).vram_mib) == (1000, 20000)
    for none in ("undefined", "0"):
        found = sent(**{**OPTIONAL, "GPUsProvisioned": none})
        assert (found.gpu_milli, found.vram_mib, found.capability, found.cpus) == (0, 0, 0, 4)
    again = {"JobStatus": "2", "JobLastStartDate": "1190", "JobCurrentStartDate": "1600"}
    evicted = sent(**{**OPTIONAL, **EVICTED, **again, "GPUsProvisioned": "0"})
    assert evicted.gpu_milli == 1000, "what was provisioned is of the run that goes on"
    assert sent(GPUsProvisioned="undefined").gpu_milli == 1000, "a job that needs its GPU had it"


def test_a_request_of_vram_of_a_pool_counts() -> None:
    assert (
        sent(RequireGPUs="undefined", GPUsMinMemory="undefined", RequestGPUMem="9000").vram_mib
        == 9000
    )


EVICTED = {
    "JobStatus": "1",
    "LastJobStatus": "2",
    "LastVacateTime": "1500",
    "CompletionDate": "undefined",
    "GPUsAverageUsage": "0.4",
    "GPUsMemoryUsage": "6000.2",
    "GPUsEnergyUsage": "1234.6",
}


def measured(**attributes: str) -> tuple[int | None, int | None, int | None]:
    found = told(**attributes)
    assert found is not None
    return found.used_milli, found.peak_vram_mib, found.energy_j


def test_measured_use_is_of_the_run_and_unknown_where_it_is_not_recorded() -> None:
    use = {
        name: EVICTED[name] for name in ("GPUsAverageUsage", "GPUsMemoryUsage", "GPUsEnergyUsage")
    }
    assert measured(**use) == (400, 6000, 1235)
    assert measured() == (None, None, None), "not 0"
    assert measured(GPUsAverageUsage="0.0", GPUsMemoryUsage="undefined") == (0, None, None)
    forged = {
        "GPUsAverageUsage": '"all"',
        "GPUsMemoryUsage": "-1",
        "GPUsEnergyUsage": 'real("INF")',
    }
    assert measured(**forged) == (None, None, None)


@pytest.mark.parametrize(
    ("user", "system", "memory", "used_s", "peak_mib"),
    [
        ("600.0", "12.4", "2048", 612, 2048),
        ("undefined", "undefined", "2048", None, 2048),
        ("600.0", "undefined", "2048", None, 2048),
        ("0.0", "0.0", "(ResidentSetSize + 1023) / 1024", None, None),
        ("0.0", "0.0", "3", 0, 3),
        ("5.0", "0.0", "undefined", 5, None),
        ('"all"', "0.0", '"much"', None, None),
        ("-1.0", "0.0", "-1", None, None),
        ('real("INF")', "0.0", 'real("NaN")', None, None),
        ("1E12", "1E12", "1E13", 300 * 4096, None),
    ],
)
def test_cpu_time_and_peak_of_memory_are_those_that_a_starter_reported(
    user: str, system: str, memory: str, used_s: int | None, peak_mib: int | None
) -> None:
    use = {"RemoteUserCpu": user, "RemoteSysCpu": system, "MemoryUsage": memory}
    found = sent(**use, ResidentSetSize="0")
    assert (found.used_cpu_s, found.peak_memory_mib) == (used_s, peak_mib)
    again = sent(**use, ResidentSetSize="0", NumJobStarts="2")
    assert again.used_cpu_s == (used_s or None), "a start sets zeros, and keeps the peak of memory"
    runs_again = {"JobStatus": "2", "JobLastStartDate": "1190", "JobCurrentStartDate": "1600"}
    evicted = sent(**{**EVICTED, **use, **runs_again})
    assert (evicted.used_cpu_s, evicted.peak_memory_mib) == (None, None)


def test_a_run_that_was_evicted_held_or_removed_counts_as_unfinished() -> None:
    evicted = told(**EVICTED)
    assert evicted is not None and evicted.unfinished and evicted.used_milli == 400
    assert (evicted.ended_at, evicted.run_s, evicted.drone_id) == (1500, 300, "kit-a-1")
    again = told(
        **{**EVICTED, "JobStatus": "2", "JobLastStartDate": "1190", "JobCurrentStartDate": "1600"}
    )
    assert again is not None and again.unfinished and again.run_s == 300
    assert again.used_milli is None, "the figures are of the run that goes on"
    for status in ("3", "5"):
        stopped = told(JobStatus=status, LastJobStatus="2", EnteredCurrentStatus="1450")
        assert (
            stopped is not None
            and stopped.unfinished
            and (stopped.ended_at, stopped.run_s) == (1450, 250)
        )
        forced = told(
            JobStatus=status,
            LastJobStatus="2",
            RemoteHost='"slot1@kit-a-2@node8"',
            EnteredCurrentStatus="1450",
        )
        assert forced is not None and forced.drone_id == "kit-a-2"
        assert told(JobStatus=status, LastJobStatus="1", EnteredCurrentStatus="1450") is None, (
            "it did not run"
        )


def test_unfinished_runs_are_asked_for_where_they_were_in_our_drones() -> None:
    asked = constraint("true", "kit", 1499.7, gpus_only=True)
    held = {"JobStatus": "5", "LastJobStatus": "2"}
    assert holds(asked, **EVICTED) and holds(asked, **held)
    assert holds(asked, **held, LastRemoteHost="undefined", RemoteHost='"slot1@kit-a-2@node8"'), (
        "removed by force"
    )
    for other in (
        {**EVICTED, "LastRemoteHost": '"slot1_1@other-a-1@node7"'},
        {**EVICTED, "LastVacateTime": "1400"},
        {**held, "LastJobStatus": "1"},
        {**held, "EnteredCurrentStatus": "1400"},
    ):
        assert not holds(asked, **other), other


def test_a_history_is_read_back_to_where_it_was_read_before() -> None:
    newest = stop("204.7", 10_000.0)
    assert holds(newest, EnteredCurrentStatus="9900"), "the newest that was told"
    assert not holds(newest, ProcId="8", EnteredCurrentStatus="9900")
    assert holds(newest, ProcId="8", EnteredCurrentStatus="6000"), (
        "long before, for any end of the reported one"
    )
    first = stop("", 10_000.0)
    assert holds(first) and not holds(first, EnteredCurrentStatus="9900")
    spooled = {"LeaveJobInQueue": "JobStatus == 4 && time() - CompletionDate < 864000"}
    assert not holds(first, **spooled), "it came late, and what came before it may be new"
    assert holds(first, LeaveJobInQueue="undefined")
