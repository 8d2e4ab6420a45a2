"""What the tools' answers are taken for, and what is asked of them; what the tools really say is in tests/live."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.htcondor.site import client as tools_module
from adapters.htcondor.site.client import CondorToolsClient
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.submission import SubmitDescription
from adapters.shared.commands.local import LocalRunner, own_environment
from adapters.shared.commands.runner import Finished, NoReplyError
from provisioner.interfaces import AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import DroneId, FaultKind

TWO = b'ClusterId = 7\nDroneId = "a"\nProcId = 0\n\nClusterId = 7\nDroneId = "b"\nProcId = 1\n\n'
BATCH = SubmitDescription(
    "executable = $(inputs)/begin.sh\n", (DroneId("c-a"), DroneId("c-b")), {"begin.sh": b"x"}
)


class Login:
    """A login node whose tools answer as a test says; its shell is this host's."""

    def __init__(self, home: Path) -> None:
        self.answers: dict[str, list[Finished | Exception]] = {}
        self.asked: list[tuple[Sequence[str], bytes]] = []
        self._shell, self._home = LocalRunner(own_environment()), home

    async def __aenter__(self) -> Login:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline_s: float) -> Finished:
        if argv[0] == "sh":
            inside = [word.replace("HOME", str(self._home)) for word in argv]
            return await self._shell.run(inside, stdin=stdin, deadline_s=deadline_s)
        self.asked.append((argv, stdin))
        tool = next(word for word in argv if word.startswith("condor_"))
        answer = self.answers[tool].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def calls(self, tool: str) -> list[Sequence[str]]:
        return [argv for argv, _ in self.asked if tool in argv]


def well(out: bytes = b"") -> Finished:
    return Finished(0, out, b"")


def badly(err: bytes, code: int = 1) -> Finished:
    return Finished(code, b"", err)


UNCOMMITTED = badly(b"ERROR: Failed to commit job submission")


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Login:
    there = Login(tmp_path)
    monkeypatch.setattr(tools_module, "runner_for", lambda *_: there)
    return there


def config(tmp_path: Path, **more: object) -> HTCondorSiteConfig:
    given = {
        "collector": "c.test:9618",
        "schedd": "s@c.test",
        "transport": "tools",
        "work_directory": tmp_path / "w",
    }
    return HTCondorSiteConfig.model_validate({**given, **more})


def tools(tmp_path: Path, **more: object) -> CondorToolsClient:
    return CondorToolsClient(config(tmp_path, **more), "site")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (well(TWO[:60]), UnavailableError),
        (well(b'DroneId = "a"\n\n'), UnavailableError),
        (Finished(1, TWO, b""), UnavailableError),
        (Finished(1, b"", b"-- Failed to fetch ads from: <127.0.0.1:1>"), UnavailableError),
        (Finished(1, b"", b"AUTHENTICATE:1003:Failed to authenticate with any method"), AuthError),
        (NoReplyError("cut"), NoReplyError),
    ],
)
async def test_a_torn_answer_is_none(
    login: Login, tmp_path: Path, answer: Finished | Exception, kind: type[Exception]
) -> None:
    login.answers = {"condor_q": [answer, well(), well(TWO)]}
    async with tools(tmp_path) as cluster:
        with pytest.raises(kind):
            await cluster.ads("jobs", "true", ["DroneId"])
        assert list(await cluster.ads("jobs", "true", ["DroneId"])) == []
        assert [ad["DroneId"] for ad in await cluster.ads("jobs", "true", ["DroneId"])] == [
            "a",
            "b",
        ]


async def test_what_is_asked_goes_as_arguments(login: Login, tmp_path: Path) -> None:
    login.answers = {"condor_q": [well()], "condor_status": [well()]}
    odd = 'DroneId == "a; rm -rf $HOME"'
    options = {"condor_config": "/etc/other", "path": "/opt/bin"}
    async with tools(tmp_path, tools={**options, "path": ""}) as cluster:
        await cluster.ads("jobs", odd, ["JobStatus", "ClusterId"])
        await cluster.ads("slots", odd, ["Cpus"])
    asked = "env CONDOR_CONFIG=/etc/other condor_q -pool c.test:9618 -name s@c.test -allusers -long -attributes"
    listed = "env CONDOR_CONFIG=/etc/other condor_status -pool c.test:9618 -long -attributes"
    assert [argv for argv, _ in login.asked] == [
        [*asked.split(), "ClusterId,ProcId,JobStatus", "-constraint", odd],
        [*listed.split(), "Name,Cpus", "-constraint", odd],
    ]


async def test_the_schedd_is_the_only_one_that_is_listed(login: Login, tmp_path: Path) -> None:
    login.answers = {
        "condor_status": [well(), well(b"s1@a.test\ns2@a.test\n"), well(b"s1@a.test\n")],
        "condor_q": [well(), well()],
    }
    async with tools(tmp_path, schedd="") as cluster:
        with pytest.raises(UnavailableError, match="does not list any schedd"):
            await cluster.ads("jobs", "true", [])
        with pytest.raises(RejectedError, match=r"set `schedd` \(s1@a.test, s2@a.test\)"):
            await cluster.ads("jobs", "true", [])
        for _ in range(2):
            await cluster.ads("jobs", "true", [])
    assert [argv[argv.index("-name") + 1] for argv in login.calls("condor_q")] == ["s1@a.test"] * 2
    assert len(login.calls("condor_status")) == 3


async def test_one_submit_starts_all_with_their_files_and_their_directories(
    login: Login, tmp_path: Path
) -> None:
    login.answers = {"condor_submit": [well(b"12.0 - 12.1\n")]}
    async with tools(tmp_path) as cluster:
        assert await cluster.submit(BATCH) == 12
    (argv, text), root = login.asked[0], tmp_path / "w/site"
    assert argv == [
        "condor_submit",
        "-pool",
        "c.test:9618",
        "-name",
        "s@c.test",
        "-terse",
        "-spool",
        "-",
    ]
    assert text.decode() == (
        f"inputs = {root}/inputs/{BATCH.digest}\noutputs = {root}/outputs\nexecutable = $(inputs)/begin.sh\n"
        "queue drone_id from (\nc-a\nc-b\n)\n"
    )
    assert sorted(each.name for each in (root / "outputs").iterdir()) == ["c-a", "c-b"]
    begin = root / "inputs" / BATCH.digest / "begin.sh"
    assert (begin.read_bytes(), begin.stat().st_mode & 0o777) == (b"x", 0o700)


@pytest.mark.parametrize(
    ("said", "afterwards", "error", "kind"),
    [
        (NoReplyError("cut"), None, OutcomeUnknownError, FaultKind.UNKNOWN),
        (UnavailableError("no connection"), None, UnavailableError, FaultKind.DOWN),
        (well(b"12.0 - 1"), None, OutcomeUnknownError, FaultKind.UNKNOWN),
        (
            badly(b"ERROR: Failed to connect to queue manager s"),
            None,
            UnavailableError,
            FaultKind.DOWN,
        ),
        (badly(b'SECMAN:2010:Received "DENIED" from server'), None, AuthError, FaultKind.DENIED),
        (UNCOMMITTED, well(TWO), OutcomeUnknownError, FaultKind.UNKNOWN),
        (UNCOMMITTED, NoReplyError("cut"), OutcomeUnknownError, FaultKind.UNKNOWN),
        (badly(b"ERROR: MAX_JOBS_PER_OWNER exceeded"), well(), RejectedError, FaultKind.QUOTA),
        (badly(b"ERROR: proxy has expired"), well(), RejectedError, FaultKind.DENIED),
    ],
)
async def test_a_submit_that_may_have_happened_is_never_called_refused(
    login: Login,
    tmp_path: Path,
    said: Finished | Exception,
    afterwards: Finished | Exception | None,
    error: type[UnavailableError],
    kind: FaultKind,
) -> None:
    login.answers = {"condor_submit": [said], "condor_q": [afterwards] if afterwards else []}
    async with tools(tmp_path) as cluster:
        with pytest.raises(error) as caught:
            await cluster.submit(BATCH)
    assert type(caught.value) is error
    assert caught.value.kind is kind
    if afterwards:
        assert (
            login.calls("condor_q")[0][-1]
            == 'stringListMember(DroneId, "c-a,c-b", ",") && JobStatus != 3'
        )


async def test_jobs_are_removed_in_handfuls_and_those_that_are_gone_are_no_error(
    login: Login, tmp_path: Path
) -> None:
    gone = b"\nJob 1.0 not found\nJob 1.1 already marked for removal\nJob 1.2 not in `X' state to be forcibly removed\n"
    login.answers = {
        "condor_rm": [well(b"Job 1.0 marked for removal\n"), badly(gone), Finished(0, b"ok", gone)]
    }
    ids = [f"1.{n}" for n in range(1200)]
    async with tools(tmp_path) as cluster:
        await cluster.remove(ids, "because\nof `this`")
        await cluster.remove([], "nothing")
        with pytest.raises(ValueError, match="no job id"):
            await cluster.remove(["1.0", "-all"], "why")
    calls = login.calls("condor_rm")
    assert [job for argv in calls for job in argv[7:]] == ids
    assert calls[0][:7] == [
        "condor_rm",
        "-pool",
        "c.test:9618",
        "-name",
        "s@c.test",
        "-reason",
        "because of `this`",
    ]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            badly(b"SECMAN:2011:Connection closed during command authorization.\n"),
            OutcomeUnknownError,
        ),
        (NoReplyError("cut"), OutcomeUnknownError),
        (UnavailableError("no connection"), UnavailableError),
        (
            badly(
                b'SECMAN:2010:Received "DENIED" from server for user x\nNo result found for job 1.0\n'
            ),
            AuthError,
        ),
        (
            Finished(0, b"Job 1.0 marked for removal", b"Permission denied to remove job 1.1\n"),
            AuthError,
        ),
    ],
)
async def test_a_removal_that_may_not_have_happened_is_told(
    login: Login, tmp_path: Path, answer: Finished | Exception, error: type[Exception]
) -> None:
    login.answers = {"condor_rm": [answer]}
    async with tools(tmp_path) as cluster:
        with pytest.raises(error):
            await cluster.remove(["1.0", "1.1"], "why", force=True)
    assert "-forcex" in login.calls("condor_rm")[0]


async def test_what_drones_left_is_fetched_once_and_a_failure_is_told(
    login: Login, tmp_path: Path
) -> None:
    (tmp_path / "w/site/outputs/c-a").mkdir(parents=True)
    (tmp_path / "w/site/outputs/c-a/drone.log").write_text("there already")
    login.answers = {
        "condor_transfer_data": [well(), badly(b"ERROR: no such job"), NoReplyError("cut")]
    }
    ids = {DroneId(f"c-{letter}"): f"5.{n}" for n, letter in enumerate("abcd")}
    async with tools(tmp_path) as cluster:
        assert await cluster.collect(ids) == {"c-c": "ERROR: no such job", "c-d": "cut"}
    assert [argv[-1] for argv in login.calls("condor_transfer_data")] == ["5.1", "5.2", "5.3"]
    async with tools(tmp_path, spool=False) as cluster:
        assert await cluster.collect(ids) == {}


async def test_old_files_that_nobody_needs_are_removed(login: Login, tmp_path: Path) -> None:
    for name in ("inputs/used", "inputs/old", "inputs/young", "outputs/c-listed", "outputs/c-old"):
        directory = tmp_path / "w/site" / name
        directory.mkdir(parents=True)
        (directory / "file").touch()
        if not name.endswith("young"):
            os.utime(directory, (1e9, 1e9))
    async with tools(tmp_path) as cluster:
        await cluster.clean_up(["used"], [DroneId("c-listed")])
    left = sorted(
        str(p.relative_to(tmp_path / "w/site")) for p in (tmp_path / "w/site").glob("*/*")
    )
    assert left == ["inputs/used", "inputs/young", "outputs/c-listed"]
