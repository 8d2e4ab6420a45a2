"""Traces: three forms, every line judged, nothing guessed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.traces import (
    OwnerLoadSeries,
    TraceColumns,
    TraceError,
    TraceSelection,
    cut_jobs,
    located,
    read_loads,
    read_trace,
)

COMMON = """job_id,submit_s,duration_s,gpus,gpu_milli,vram_mb,cpus,mem_mb,gpu_model,user,group,priority,status
0,0,3600,1,1000,,12.0,24576,V100M16|V100M32,,,LS,Running
1,50,600,1,110,,4.0,15258,,ann,,LS,Running
2,60,,1,1000,,4.0,15258,,,,LS,Running
3,70,600,0,0,,4.0,15258,,,,LS,Running
4,100,60,2,1000,16000,,,,,lab,,
5,500,60,1,,,,,,,lab,,
"""
SWF = """; Version: 2
; a comment
1 100 5 600 4 -1 -1 4 900 2048 1 7 3 -1 1 -1 -1 -1
2 160 5  60 -1 -1 -1 2 900 -1 1 -1 -1 -1 1 -1 -1 -1
3 170 5 -1 4 -1 -1 4 900 -1 0 7 3 -1 1 -1 -1 -1
"""


def file(directory: Path, text: str, name: str = "t.csv") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def refused(path: Path, **more: object) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path, **more)  # type: ignore[arg-type]
    return "\n".join(caught.value.lines)


def told(jobs: tuple[SimulatedJob, ...]) -> list[tuple[float, float, int, int, int, str]]:
    return [(j.submit_s, j.duration_s, w.gpu_milli, w.cpus, w.memory_mib, w.owner) for j in jobs for w in [j.wants]]


# ----------------------------------------------------------------------------------------------------------- the forms


def test_the_common_form_plain_or_packed(tmp_path: Path) -> None:
    packed = tmp_path / "t.csv.gz"
    with gzip.open(packed, "wt") as out:
        out.write(COMMON)
    trace = read_trace(file(tmp_path, COMMON))
    assert trace.jobs == read_trace(packed).jobs
    assert trace.name == "t" and trace.left_out == 2 and trace.span_s == 500.0
    assert told(trace.jobs) == [
        (0.0, 3600.0, 1000, 12, 24576, "nobody"),
        (50.0, 600.0, 110, 4, 15258, "ann"),
        (100.0, 60.0, 2000, 1, 1024, "lab"),
        (500.0, 60.0, 1000, 1, 1024, "lab"),
    ]
    assert trace.jobs[2].wants.vram_mib == 16000
    assert [job.wants.group for job in trace.jobs] == ["", "", "lab", "lab"]


def test_any_csv_whose_columns_are_declared(tmp_path: Path) -> None:
    path = file(tmp_path, 'When,Took,N,"RAM, GB"\n2020-05-01 12:00:00,10,1,2\n2020-05-01 11:59:00,5.5,8,0.5\n')
    columns = TraceColumns.declared("submit=When, duration=Took*60, gpus=N")
    assert told(read_trace(path, columns=columns).jobs) == [
        (0.0, 330.0, 8000, 1, 1024, "nobody"),
        (60.0, 600.0, 1000, 1, 1024, "nobody"),
    ]


def test_swf_counts_processors_as_gpus_or_as_cpus(tmp_path: Path) -> None:
    path = file(tmp_path, SWF, "t.swf")
    trace = read_trace(path)
    assert trace.left_out == 1
    assert told(trace.jobs) == [(0.0, 600.0, 4000, 1, 8, "user7"), (60.0, 60.0, 2000, 1, 1024, "nobody")]
    assert [job.wants.group for job in trace.jobs] == ["group3", ""]
    assert told(read_trace(path, swf_cpus=True).jobs)[0] == (0.0, 600.0, 1000, 4, 8, "user7")
    nameless = read_trace(path, TraceSelection(ignore=("user", "group"))).jobs[0].wants
    assert (nameless.owner, nameless.group) == ("nobody", "")


def test_user_and_group_are_those_of_the_jobs(tmp_path: Path) -> None:
    path = file(tmp_path, "submit_s,duration_s,user,group\n1,2,ann,physics.atlas\n2,2,,physics\n3,2,ben,\n")
    jobs = read_trace(path).jobs
    assert [(j.wants.owner, j.wants.group) for j in jobs] == [
        ("ann", "physics.atlas"),
        ("physics", "physics"),
        ("ben", ""),
    ]
    assert [j.wants.owner for j in cut_jobs(jobs, TraceSelection(groups=("physics", "ben")))] == ["physics", "ben"]


# ------------------------------------------------------------------------------------------------------------- the cut


def test_a_part_of_a_trace(tmp_path: Path) -> None:
    path = file(tmp_path, COMMON)
    assert [j.submit_s for j in read_trace(path, TraceSelection(from_s=40.0, span_s=70.0)).jobs] == [10.0, 60.0]
    assert len(read_trace(path, TraceSelection(limit=2)).jobs) == 2
    assert [j.submit_s for j in read_trace(path, TraceSelection(groups=("lab",), gpus=(1,))).jobs] == [500.0]
    assert max(j.duration_s for j in read_trace(path, TraceSelection(cap_s=100.0)).jobs) == 100.0
    plain = read_trace(path, TraceSelection(ignore=("cpus", "memory", "gpu_milli"))).jobs
    assert {(j.wants.cpus, j.wants.memory_mib) for j in plain} == {(1, 1024)}
    assert [j.wants.gpu_milli for j in plain] == [1000, 1000, 2000, 1000]


def test_a_mix_of_vram_is_the_same_each_time_and_has_the_shares_it_says(tmp_path: Path) -> None:
    path = file(tmp_path, "submit_s,duration_s\n" + "".join(f"{n},60\n" for n in range(4000)))
    jobs = read_trace(path, TraceSelection(vram_seed=7)).jobs
    assert (
        jobs == read_trace(path, TraceSelection(vram_seed=7)).jobs != read_trace(path, TraceSelection(vram_seed=8)).jobs
    )
    assert 0.42 < sum(j.wants.vram_mib > 8000 for j in jobs) / len(jobs) < 0.48
    assert {j.wants.vram_mib for j in jobs} == {8000, 16000, 24000, 32000, 40000, 80000}


def test_jobs_from_elsewhere_are_cut_likewise(tmp_path: Path) -> None:
    jobs = read_trace(file(tmp_path, COMMON)).jobs
    assert [j.submit_s for j in cut_jobs(jobs, TraceSelection(groups=("lab",), from_s=50.0))] == [50.0, 450.0]
    with pytest.raises(TraceError, match="no job of group `labb`: did you mean `lab`"):
        cut_jobs(jobs, TraceSelection(groups=("labb",)))


# --------------------------------------------------------------------------------------------------------- broken input


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "t.csv:1: the file is empty: a header line"),
        ("submit,took\n1,2\n", "t.csv:1: there is no column `submit_s`: did you mean `submit`?"),
        ("submit_s,duration_s\n1,2,3\n", "t.csv:2: 3 fields, but the header has 2"),
        ("submit_s,duration_s\n1,2\n1,soon\n", "t.csv:3: `duration_s`: `soon` is no number"),
        ("submit_s,duration_s\n1,-2\n", "t.csv:2: `duration_s`: `-2` is not a number from 0 up"),
        ("submit_s,duration_s\n1,inf\n", "t.csv:2: `duration_s`: `inf` is not a number from 0 up"),
        ("submit_s,duration_s\n,2\n", "t.csv:2: `submit_s` is empty"),
        ("submit_s,duration_s\n2020-31-01,2\n", "t.csv:2: `submit_s`: `2020-31-01` is no time"),
        ("submit_s,duration_s\n1,0\n", "t.csv: no job with a run time and a GPU in it"),
        ("submit_s,duration_s\n1,\0\n", "t.csv:2: a NUL character"),
    ],
)
def test_a_bad_line_is_named_with_its_repair(tmp_path: Path, text: str, words: str) -> None:
    assert words in refused(file(tmp_path, text))


def test_bad_swf_lines_are_named(tmp_path: Path) -> None:
    assert "t.swf:4: 3 fields, but the Standard Workload Format has 18" in refused(
        file(tmp_path, SWF.replace("2 160 5  60 -1 -1 -1 2 900 -1 1 -1 -1 -1 1 -1 -1 -1", "2 160 5"), "t.swf")
    )
    assert "t.swf:3: `field 4, run time`: `x` is no number" in refused(
        file(tmp_path, SWF.replace("1 100 5 600", "1 100 5 x"), "t.swf")
    )


def test_many_bad_lines_are_counted_and_may_be_left_out(tmp_path: Path) -> None:
    path = file(tmp_path, "submit_s,duration_s\n" + "1,x\n" * 25 + "1,5\n")
    words = refused(path)
    assert "t.csv:11:" in words and "t.csv:12:" not in words
    assert "and 15 more" in words and "25 bad lines: repair them, or leave them out: --skip-bad" in words
    trace = read_trace(path, skip_bad=True)
    assert len(trace.jobs) == 1 and len(trace.bad) == 25


def test_files_that_cannot_be_read_to_their_end(tmp_path: Path) -> None:
    whole = gzip.compress(b"submit_s,duration_s\n" + b"1,2\n" * 5000)
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) // 2])
    assert "not a whole gzip file" in refused(tmp_path / "t.csv.gz")
    (tmp_path / "t.csv.gz").write_bytes(b"submit_s,duration_s\n")
    assert "t.csv.gz:1: not a whole gzip file" in refused(tmp_path / "t.csv.gz")
    (tmp_path / "t.csv").write_bytes(b"submit_s,duration_s\n1,2\n\xff,2\n")
    assert "not UTF-8" in refused(tmp_path / "t.csv")
    assert "No such file" in refused(tmp_path / "nothing.csv")
    assert "directory" in refused(tmp_path)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("submit", "`submit` declares no column: write `submit=NAME_IN_THE_FILE`"),
        ("submit=A", "no column declared for duration"),
        ("submit=A,duration=B,gpu=C", "unknown field `gpu`: did you mean `gpus`?"),
    ],
)
def test_declarations_that_are_none(declared: str, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        TraceColumns.declared(declared)
    assert words in str(caught.value)


def test_declared_columns_must_be_there(tmp_path: Path) -> None:
    path = file(tmp_path, "A,Took\n1,2\n")
    assert "there is no column `Tok`: did you mean `Took`?" in refused(
        path, columns=TraceColumns.declared("submit=A,duration=Tok")
    )
    assert "`Took*much`: a factor is a number" in refused(
        path, columns=TraceColumns.declared("submit=A,duration=Took*much")
    )


def test_a_trace_is_found_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    path = file(tmp_path / "there", COMMON)
    assert located(Path("t.csv"), tmp_path / "here") is None
    monkeypatch.setenv("PROVISIONER_TRACES", str(tmp_path / "there"))
    assert located(Path("t.csv"), tmp_path / "here") == path


# ---------------------------------------------------------------------------------------------------- an owner's series

SERIES = "vc,t_s,total_gpus,busy_gpus,pending_gpus\na,0,10,4,2\na,90000,10,8,0\nb,0,4,4,0\n"


def test_an_owners_series_with_what_he_waits_for_or_without(tmp_path: Path) -> None:
    path = file(tmp_path, SERIES)
    assert read_loads(path)["a"] == OwnerLoadSeries("a", 10, ((0.0, 6), (90000.0, 8)))
    busy = read_loads(path, pending=False)["a"]
    assert busy.steps == ((0.0, 4), (90000.0, 8))
    assert busy.scaled(5).steps == ((0.0, 2), (90000.0, 4))
    assert busy.repeated(3 * 86400.0).steps == ((0.0, 4), (90000.0, 8), (172800.0, 4), (262800.0, 8))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vc,t_s\n", "t.csv:1: there is no column `total_gpus`"),
        (SERIES.replace("a,0,10,4,2", "a,0,10,4"), "t.csv:2: not a row of"),
        (SERIES.replace("b,0,4,4,0", "b,0,4,nan,0"), "t.csv:4: not a row of"),
    ],
)
def test_a_broken_series(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_loads(file(tmp_path, text))
    assert words in str(caught.value)
