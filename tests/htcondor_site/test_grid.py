"""Drones through a computing element: what their ads, as of HTCondor 25.14.1, say, and what is asked for them there."""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import replace

import classad2
import pytest

from adapters.htcondor.site.listing import list_drones
from provisioner.model import DroneType, EndKind, FaultKind, InferenceServer, RemoteState
from tests.htcondor_site.orders import A100, CONTROLLER, CPU, config, order, submitted
from tests.htcondor_site.test_listing import NOW, OURS, ad, drone

CE = {"universe": "grid", "grid_resource": "condor ce.example.org ce.example.org:9619"}
ARC = {
    "universe": "grid",
    "grid_resource": "arc https://arc.example.org:443/arex/rest/1.0",
    "scitokens_file": "/run/token",
}
SENT = {"JobUniverse": 9, "JobStatus": 1, "Managed": "External"}
AT_CE = {**SENT, "GridJobId": "condor ce.example.org ce.example.org:9619 7.0"}
RUNS_THERE = {
    **AT_CE,
    "JobStatus": 2,
    "GridJobStatus": "RUNNING",
    "JobCurrentStartDate": NOW - 100,
    "NumShadowStarts": 1,
}
BROUGHT_BACK = "its files are brought back"


@pytest.mark.parametrize(
    ("values", "state", "reason"),
    [
        (SENT, RemoteState.PENDING, "waits to be sent to the computing element"),
        (AT_CE, RemoteState.PENDING, "waits at the computing element: sent"),
        (
            {**AT_CE, "GridJobStatus": "IDLE"},
            RemoteState.PENDING,
            "waits at the computing element: IDLE",
        ),
        # mirrored before the element says that it runs
        (
            {**RUNS_THERE, "JobStatus": 1, "NumJobStarts": 1, "GridJobStatus": "IDLE"},
            RemoteState.PENDING,
            "waits at the computing element: IDLE",
        ),
        (RUNS_THERE, RemoteState.RUNNING, ""),
        ({**RUNS_THERE, "JobCurrentStartDate": None}, RemoteState.RUNNING, ""),
        ({**RUNS_THERE, "GridJobStatus": "COMPLETED"}, RemoteState.RUNNING, BROUGHT_BACK),
        ({**RUNS_THERE, "GridJobStatus": "FINISHED"}, RemoteState.RUNNING, BROUGHT_BACK),
        (
            {**SENT, "JobStatus": 5, "HoldReasonCode": 16},
            RemoteState.PENDING,
            "its files are being sent to the schedd",
        ),
        (
            {**RUNS_THERE, "JobStatus": 3, "RemoveReason": OURS},
            RemoteState.RUNNING,
            "removed; the computing element has not confirmed it yet",
        ),
        (
            {
                **RUNS_THERE,
                "JobStatus": 3,
                "Managed": "ScheddDone",
                "EnteredCurrentStatus": NOW - 4,
            },
            RemoteState.RUNNING,
            "removed; gone within 11 s",
        ),
    ],
)
def test_a_drone_is_as_its_computing_element_says(
    values: dict[str, object], state: RemoteState, reason: str
) -> None:
    found = drone(**values)
    assert (found.state, found.reason, found.end) == (state, reason, None)
    assert found.node == found.slot == "", "nothing is known of nodes there"
    began = state is RemoteState.RUNNING and values.get("JobCurrentStartDate")
    assert found.started_at == (NOW - 100 if began else 0.0)


GONE = "Job disappeared from remote schedd"


@pytest.mark.parametrize(
    ("values", "kind", "detail"),
    [
        # idle again: its second life is not awaited
        ({**RUNS_THERE, "JobStatus": 1, "LastJobStatus": 2}, EndKind.PREEMPTED, None),
        ({**RUNS_THERE, "JobStatus": 1, "NumJobStarts": 2}, EndKind.PREEMPTED, None),
        ({**RUNS_THERE, "JobStatus": 4, "ExitCode": 73}, EndKind.EXITED, 73),
        (
            {**RUNS_THERE, "JobStatus": 3, "Managed": "ScheddDone", "RemoveReason": OURS},
            EndKind.STOPPED,
            None,
        ),
        (
            {**AT_CE, "JobStatus": 3, "Managed": "ScheddDone", "RemoveReason": OURS},
            EndKind.STOPPED,
            None,
        ),
        ({**AT_CE, "JobStatus": 5, "HoldReason": GONE}, EndKind.PREEMPTED, None),
        (
            {**AT_CE, "JobStatus": 3, "Managed": "ScheddDone", "LastJobStatus": 5}
            | {"LastHoldReasonCode": 0, "LastHoldReason": GONE},
            EndKind.PREEMPTED,
            None,
        ),
    ],
)
def test_the_end_of_a_drone_behind_a_computing_element(
    values: dict[str, object], kind: EndKind, detail: int | None
) -> None:
    found = drone(**values)
    assert found.end is not None, found
    assert (found.end.kind, found.end.exit_code) == (kind, detail)


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("AUTHENTICATE:1003:Failed to authenticate with any method", FaultKind.DENIED),
        ("Failed to provide GAHP with token", FaultKind.DENIED),
        ("ARC job has no credentials", FaultKind.DENIED),
        ("HTTP response 403: Forbidden", FaultKind.DENIED),
        ("Number of submitted jobs would exceed MAX_JOBS_SUBMITTED", FaultKind.QUOTA),
        ("Failed to start GAHP", FaultKind.CONFIG),
        ("File stage-in failed: Timeout was reached", FaultKind.DOWN),
        ("ARC job failed: LRMS error", FaultKind.NODE),
    ],
)
def test_holds_of_the_gridmanager_are_told_apart_by_their_words(why: str, kind: FaultKind) -> None:
    held = drone(**{**AT_CE, "JobStatus": 5, "HoldReason": why, "HoldReasonCode": 0})
    assert held.end is not None and held.end.fault is kind
    remote = drone(**{**AT_CE, "JobStatus": 5, "HoldReason": why, "HoldReasonCode": 34})
    assert remote.end is not None and remote.end.fault is FaultKind.DRONE, "a code says more"


def test_a_hold_for_credentials_says_who_refuses_them() -> None:
    why = 'Error connecting to schedd ce: SECMAN:2010:Received "DENIED" from server for user x'
    held = drone(**{**AT_CE, "JobStatus": 5, "HoldReason": why})
    assert held.end is not None
    assert held.end.message == f"the computing element refuses the credentials: {why}"


def test_a_computing_element_that_does_not_answer_is_noticed_and_holds_further_drones_back() -> (
    None
):
    silent = {"GridResourceUnavailableTime": NOW - 90}
    ads = [ad(1, **SENT, **silent), ad(2, **{**RUNS_THERE, **silent})]
    view = list_drones(ads, CONTROLLER, now=NOW)
    waits, runs = (view.drones[drone_id] for drone_id in sorted(view.drones))
    assert (waits.blocked, waits.hopeless) == (FaultKind.DOWN, False)
    assert (runs.state, runs.blocked) == (RemoteState.RUNNING, None)
    assert view.notices == (
        "the computing element has not answered for 90 s: 2 drones are listed as they were",
    )


def lines(kind: DroneType = A100, **commands: str) -> dict[str, str]:
    [batch] = submitted(order(1, kind), submit=commands)
    return dict(line.split(" = ", 1) for line in batch.description.splitlines())


def test_an_htcondor_ce_gets_what_pilots_say_and_lets_no_drone_live_twice() -> None:
    found = lines(**CE)
    assert (found["My.xcount"], found["My.maxMemory"], found["My.maxWallTime"]) == (
        "8",
        "20480",
        "1440",
    )
    assert found["My.remote_PeriodicRemove"] in found["periodic_remove"]
    assert found["My.remote_DroneId"] == '"$(drone_id)"'
    assert "NumJobStarts" in found["My.remote_Requirements"]
    assert not {"requirements", "job_lease_duration"} & found.keys(), (
        "with a lease the element would end the drones when the way to it is cut"
    )
    given = lines(**CE, **{"+xcount": "4", "My.MaxMemory": "5"})
    assert (given["+xcount"], given["My.MaxMemory"]) == ("4", "5")
    assert not {"My.xcount", "My.maxMemory"} & given.keys(), "the admin's own stay"
    assert "My.maxWallTime" not in lines(CPU, **CE)


def test_an_arc_gets_its_request_from_the_drone_type() -> None:
    found = lines(**ARC)
    assert found["arc_resources"] == (
        f"<IndividualPhysicalMemory>{2560 << 20}</IndividualPhysicalMemory>"
        f"<DiskSpaceRequirement>{50000 << 20}</DiskSpaceRequirement><WallTime>86400</WallTime>"
    ), "memory is counted for each core"
    assert found["transfer_output_files"] == "drone.log, outcome"
    assert not [name for name in found if name in ("My.xcount", "My.remote_Requirements")]
    admins = "<WallTime>60</WallTime><Coprocessor>CUDA</Coprocessor>"
    given = lines(CPU, **ARC, arc_resources=admins)["arc_resources"]
    assert given.endswith(admins) and given.count("<WallTime>") == 1


@pytest.mark.parametrize(
    ("life", "back"),
    [
        ({"JobStatus": 1, "LastJobStatus": 5}, False),
        ({"JobStatus": 1, "LastJobStatus": 0, "NumJobStarts": 1}, False),
        ({"JobStatus": 2, "LastJobStatus": 1, "NumJobStarts": 2}, False),
        ({"JobStatus": 1, "LastJobStatus": 2}, True),
        ({"JobStatus": 1, "LastJobStatus": 5, "NumJobStarts": 2}, True),
    ],
)
def test_a_job_is_removed_when_it_is_back_in_the_queue(life: dict[str, object], back: bool) -> None:
    job = ad(1, **{"NumJobStarts": None, **life})
    policy = lines(**CE)["My.remote_PeriodicRemove"]
    assert (classad2.ExprTree(policy).eval(job) is True) == back


def test_files_go_as_one_archive() -> None:
    [batch] = submitted(order(1), submit=ARC)
    assert sorted(batch.files) == ["begin.sh", "drone.tar"]
    taken = re.search(r"^transfer_input_files = (.*)$", batch.description, re.MULTILINE)
    assert taken is not None and taken[1] == "$(inputs)/drone.tar"
    with tarfile.open(fileobj=io.BytesIO(batch.files["drone.tar"])) as archive:
        modes = {entry.name: entry.mode for entry in archive}
    assert modes == {"checks/disk.sh": 0o700, "drone.sh": 0o700, "token": 0o600}
    assert submitted(order(1), submit=ARC)[0].digest == batch.digest


def conflicts(*kinds: DroneType, **options: object) -> dict[tuple[str | int, ...], str]:
    return dict(config(**options).type_conflicts(kinds or (A100,)))


def test_what_works_through_a_computing_element_passes() -> None:
    capital = {"Universe": "Grid", "Grid_Resource": CE["grid_resource"]}
    for commands in (CE, ARC, capital):
        assert not conflicts(submit=commands)
    assert not conflicts(A100, CPU, submit=CE, types={"cpu": {"submit": {"+xcount": "1"}}})


@pytest.mark.parametrize(
    ("options", "place", "words"),
    [
        ({"submit": {"universe": "grid"}}, ("options", "submit", "universe"), "`condor NAME HOST"),
        (
            {"submit": {**CE, "grid_resource": "batch slurm"}},
            ("options", "submit", "grid_resource"),
            "`arc https://",
        ),
        (
            {"submit": {k: v for k, v in ARC.items() if k != "scitokens_file"}},
            ("options", "submit", "grid_resource"),
            "credentials",
        ),
        (
            {"submit": {"grid_resource": CE["grid_resource"]}},
            ("options", "submit", "grid_resource"),
            "wants `universe: grid`",
        ),
        (
            {"submit": {**CE, "Requirements": "TARGET.Cpus > 1"}},
            ("options", "submit", "Requirements"),
            "attribute that a route reads",
        ),
        (
            {"submit": CE, "types": {"a100": {"requirements": "TARGET.Cpus > 1"}}},
            ("options", "types", "a100", "requirements"),
            "attribute that a route reads",
        ),
        (
            {"submit": ARC, "types": {"a100": {"submit": {"require_gpus": "true"}}}},
            ("options", "types", "a100", "submit", "require_gpus"),
            "attribute that a route reads",
        ),
        (
            {"submit": CE, "owner": {"schedds": ["s.example.org"]}},
            ("options", "owner"),
            "remove it",
        ),
        ({"submit": CE, "lease": "60s"}, ("options", "lease"), "remove it"),
        ({"submit": CE, "slot_max_age": "60s"}, ("options", "slot_max_age"), "remove it"),
    ],
)
def test_what_cannot_work_is_refused_at_its_place_with_a_remedy(
    options: dict[str, object], place: tuple[str, ...], words: str
) -> None:
    found = conflicts(**options)
    assert list(found) == [place]
    assert words in found[place]


def test_behind_a_computing_element_no_server_has_an_address() -> None:
    server = replace(A100, server=InferenceServer("cms", ("deepmet:3",)))
    found = conflicts(server, submit=CE)
    assert "no client finds a server" in found["types", "a100", "server"]
    assert not conflicts(server)


def test_one_site_is_behind_a_computing_element_with_all_its_types_and_keeps_nothing_free() -> None:
    mixed = conflicts(A100, CPU, types={"a100": {"submit": CE}})
    assert "make two sites" in mixed["options", "types", "a100", "submit", "universe"]
    kept = replace(A100, kept_cpus=4)
    assert "free GPUs" in conflicts(kept, submit=CE)[("blocking",)]
    assert not conflicts(kept)
