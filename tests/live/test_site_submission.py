"""What ``condor_submit`` of each version makes of our submit descriptions: the very job that was ordered."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace

import classad2
import htcondor2  # noqa: F401 - for versionGE and countMatches
import pytest

from adapters.htcondor.site.submission import SubmitDescription
from tests.htcondor_site.orders import A100, CPU, DRONE, order, submitted
from tests.labs.htcondor import Condor, account, lab_directory

Job = Callable[..., classad2.ClassAd]
A100_DEVICE = {
    "Capability": 8.0,
    "GlobalMemoryMb": 40326,
    "DeviceName": "NVIDIA A100-SXM4-40GB",
    "MaxSupportedVersion": 12080,
}


@pytest.fixture
def job(condor: Condor) -> Iterator[Job]:
    """The job ad of a row of a batch; nothing is submitted."""
    with lab_directory("dry") as root:
        (root / "config").write_text(
            f"RELEASE_DIR = {condor.prefix}/usr\nLOCAL_DIR = {root}\nLOG = {root}\n"
        )

        def ad_of(batch: SubmitDescription, row: int = 0) -> classad2.ClassAd:
            for name, content in batch.files.items():
                file = root / "inputs" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            for drone_id in batch.drone_ids:
                (root / "outputs" / drone_id).mkdir(parents=True, exist_ok=True)
            rows = "\n".join(batch.drone_ids)
            macros = f"inputs = {root}/inputs\noutputs = {root}/outputs\n"
            text = f"{macros}{batch.description}queue drone_id from (\n{rows}\n)\n"
            (root / "drones.sub").write_text(text)
            account().give(root)
            env = {"PATH": condor.path, "CONDOR_CONFIG": str(root / "config"), "HOME": str(root)}
            command = ("condor_submit", "-dry-run", str(root / "ads"), str(root / "drones.sub"))
            subprocess.run(command, env=env, check=True, timeout=60, cwd=root, **account().run)
            return _chained((root / "ads").read_text(), row)

        yield ad_of


def _chained(text: str, row: int) -> classad2.ClassAd:
    """The ad of a job: the first one's with its own on top. (Later ones tell what differs.)"""
    ads = [classad2.parseOne(each) for each in text.split("\n\n") if each.strip()]
    made = classad2.ClassAd()
    made.update(ads[0])
    made.update(ads[row])
    return made


def test_the_job_carries_our_ids_and_asks_for_the_shape(job: Job) -> None:
    [batch] = submitted(order(1), order(2))
    ad = job(batch, 1)
    assert ad["DroneId"] == "main-ab12-2"
    assert (ad["ProvisionerController"], ad["DroneSite"], ad["DroneType"]) == (
        "main",
        "topas",
        "a100",
    )
    assert ad["DroneInputs"] == batch.digest
    assert (ad["RequestCpus"], ad["RequestMemory"], ad["RequestGPUs"]) == (8, 20480, 1)
    assert ad["RequestDisk"] == 50000 * 1024  # KiB
    assert (ad["JobLeaseDuration"], ad["JobMaxVacateTime"], ad["JobNotification"]) == (60, 30, 0)
    assert ad["MaxJobRetirementTime"] == 0, (
        "it goes when it is told, whatever its node would grant it"
    )
    assert ad["AllowedExecuteDuration"] == 86400 + 60
    assert (ad["ShouldTransferFiles"], ad["WhenToTransferOutput"]) == ("YES", "ON_EXIT_OR_EVICT")


def test_the_environment_arrives_letter_by_letter(job: Job) -> None:
    awkward = {
        "A": "it's",
        "B": 'say "no"',
        "C": "$HOME $(X) $",
        "D": "",
        "E": "a b;c=d",
        "F": "back\\slash'",
    }
    [batch] = submitted(order(7, A100, replace(DRONE, env=awkward)), env={"SITE": "x y"})
    environment = _unpacked(str(job(batch)["Environment"]))
    assert {name: environment[name] for name in awkward} == awkward
    assert environment["DRONE_ID"] == environment["PROVISIONER_DRONE_ID"] == "main-ab12-7"
    assert (environment["SITE"], environment["DRONE_CPUS"], environment["DRONE_GRACE_S"]) == (
        "x y",
        "8",
        "30",
    )
    # the job's own scratch directory, which the drone takes by default
    assert "DRONE_DIR" not in environment
    assert environment["PATH"]


def _unpacked(text: str) -> dict[str, str]:
    """HTCondor's V2 environment: words with blanks in single quotes, a quote doubled."""
    words = re.findall(r"(?:[^' ]|'(?:[^']|'')*')+", text)
    plain = [
        re.sub(r"'((?:[^']|'')*)'", lambda quoted: quoted[1].replace("''", "'"), word)
        for word in words
    ]
    return dict(each.split("=", 1) for each in plain)


def _ad(job: Job, **values: object) -> classad2.ClassAd:
    [batch] = submitted(order(1))
    made = job(batch)
    for name, value in values.items():
        made[name] = value
    return made


@pytest.mark.parametrize(
    ("life", "matches", "removed"),
    [
        ({"JobStatus": 1, "NumJobStarts": 0}, True, False),
        ({"JobStatus": 2, "NumJobStarts": 1, "JobCurrentStartExecutingDate": 5}, False, False),
        ({"JobStatus": 1, "NumJobStarts": 1}, False, True),
        # the count is late
        ({"JobStatus": 1, "NumJobStarts": 0, "JobCurrentStartExecutingDate": 5}, False, True),
        ({"JobStatus": 5, "HoldReasonCode": 13}, True, True),
        (
            {"JobStatus": 5, "HoldReasonCode": 16, "EnteredCurrentStatus": 4_000_000_000},
            True,
            False,
        ),
        ({"JobStatus": 5, "HoldReasonCode": 16, "EnteredCurrentStatus": 1_000_000_000}, True, True),
    ],
)
def test_an_evicted_drone_neither_matches_nor_stays(
    job: Job, life: dict[str, object], matches: bool, removed: bool
) -> None:
    ad = _ad(job, **life)
    slot = classad2.ClassAd(
        {"Arch": "X86_64", "OpSys": "LINUX", "Memory": 10**6, "Cpus": 64, "Disk": 10**9}
    )
    slot["HasFileTransfer"], slot["CondorVersion"] = True, "$CondorVersion: 25.14.1 2026-10-16 $"
    slot["AvailableGPUs"] = [classad2.ClassAd(A100_DEVICE)]
    parsed = classad2.ExprTree(str(ad.lookup("Requirements")))
    assert parsed.eval(ad, slot) is matches
    assert ad.eval("PeriodicRemove") is removed


@pytest.mark.parametrize(
    ("status", "since_s", "kept"), [(3, 100, True), (4, 100, True), (4, 700, False), (1, 0, False)]
)
def test_an_ended_drone_stays_listed_for_a_while(
    job: Job, status: int, since_s: int, kept: bool
) -> None:
    now = int(classad2.ExprTree("time()").eval())
    assert (
        _ad(job, JobStatus=status, EnteredCurrentStatus=now - since_s).eval("LeaveJobInQueue")
        is kept
    )


def test_the_admins_commands_are_there_and_a_types_own_take_their_place(job: Job) -> None:
    general = {"+IsBackfill": "True", "accounting_group": "group_backfill", "rank": "TARGET.Memory"}
    general["require_gpus"] = "DeviceUuid != undefined || true"
    special = {
        "a100": {"submit": {"Rank": "TARGET.Cpus"}, "requirements": 'TARGET.GpuClass == "a100"'}
    }
    [batch] = submitted(order(1), submit=general, types=special)
    ad = job(batch)
    assert ad["IsBackfill"] is True
    assert ad["AcctGroup"] == "group_backfill"
    assert "TARGET.Cpus" in str(ad.lookup("Rank"))
    assert "TARGET.Memory" not in str(ad.lookup("Rank"))
    assert all(
        part in str(ad.lookup("Requirements"))
        for part in ("NumJobStarts", '(TARGET.GpuClass == "a100")')
    )
    assert all(
        part in str(ad.lookup("RequireGPUs"))
        for part in ("Capability >= 8", f"({general['require_gpus']})")
    )
    [plain] = submitted(order(1, CPU), submit=general, types=special)
    assert "TARGET.Memory" in str(job(plain).lookup("Rank"))
    assert "GpuClass" not in str(job(plain).lookup("Requirements"))
    assert "RequestGPUs" not in job(plain) and "AllowedExecuteDuration" not in job(plain)


def test_a_computing_element_gets_our_ids_too(job: Job) -> None:
    ce = {"universe": "grid", "grid_resource": "condor ce.example.org ce.example.org:9619"}
    [batch] = submitted(order(1), submit=ce)
    ad = job(batch)
    assert ad["JobUniverse"] == 9
    assert ad["remote_DroneId"] == ad["DroneId"] == "main-ab12-1"
    assert ad["remote_ProvisionerController"] == "main"
