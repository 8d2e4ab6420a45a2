"""Traces: every line judged, nothing guessed; a part of them; the series of owners."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.traces import (
    OwnerLoadSeries,
    TraceError,
    TraceSelection,
    declared_columns,
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
SERIES = "vc,t_s,total_gpus,busy_gpus,pending_gpus\na,0,10,4,2\na,90000,10,8,0\nb,0,4,4,0\n"


def file(directory: Path, text: str) -> Path:
    path = directory / "t.csv"
    path.write_text(text)
    return path


def refused(path: Path, **more: Any) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path, **more)
    return "\n".join(caught.value.lines)


def told(jobs: tuple[SimulatedJob, ...]) -> list[tuple[float, float, int, int, int, str, str]]:
    wanted = [(job, job.wants) for job in jobs]
    return [
        (j.submit_s, j.duration_s, w.gpu_milli, w.cpus, w.memory_mib, w.owner, w.group)
        for j, w in wanted
    ]


def test_the_common_form_plain_or_packed(tmp_path: Path) -> None:
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(COMMON.encode()))
    trace = read_trace(file(tmp_path, COMMON))
    assert trace.jobs == read_trace(packed).jobs
    assert trace.name == "t" and trace.left_out == 2 and trace.span_s == 500.0
    assert told(trace.jobs) == [
        (0.0, 3600.0, 1000, 12, 24576, "nobody", ""),
        (50.0, 600.0, 110, 4, 15258, "ann", ""),
        (100.0, 60.0, 2000, 1, 1024, "lab", "lab"),
        (500.0, 60.0, 1000, 1, 1024, "lab", "lab"),
    ]
    assert trace.jobs[2].wants.vram_mib == 16000


def test_any_csv_whose_columns_are_declared(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        'When,Took,N,"RAM, GB"\n2020-05-01 12:00:00,10,1,2\n2020-05-01 11:59:00,5.5,8,0.5\n',
    )
    columns = declared_columns("submit=When, duration=Took*60, gpus=N")
    assert told(read_trace(path, columns=columns).jobs) == [
        (0.0, 330.0, 8000, 1, 1024, "nobody", ""),
        (60.0, 600.0, 1000, 1, 1024, "nobody", ""),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_as_a_spreadsheet_saves_it(
    tmp_path: Path, separator: str, end: str, packed: bool
) -> None:
    rows = ("submit_s,duration_s,gpus", "0,600,2", "")
    data = b"\xef\xbb\xbf" + end.join(rows).replace(",", separator).encode()
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert [each[:3] for each in told(read_trace(path).jobs)] == [(0.0, 600.0, 2000)]


def test_an_owners_series_as_a_spreadsheet_saves_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + SERIES.replace("\n", "\r\n").encode())
    assert read_loads(path)["b"].gpus == 4


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("0:00:16", 16.0), ("3-08:24:04", 289444.0), ("16:40", 1000.0), ("00:00:01.5", 1.5)],
)
def test_run_times_as_accounting_tools_print_them(
    tmp_path: Path, written: str, seconds: float
) -> None:
    path = file(tmp_path, f"Submit|Elapsed|NGPUS\n2026-01-02T03:04:05|{written}|1\n")
    (job,) = read_trace(
        path, columns=declared_columns("submit=Submit,duration=Elapsed,gpus=NGPUS")
    ).jobs
    assert job.duration_s == seconds


def test_a_job_with_an_empty_number_of_gpus_wants_none(tmp_path: Path) -> None:
    trace = read_trace(file(tmp_path, "submit_s,duration_s,gpus\n0,60,\n5,60,2\n"))
    assert (len(trace.jobs), trace.left_out) == (1, 1)


@pytest.mark.parametrize(
    ("selection", "jobs"),
    [
        (TraceSelection(from_s=40.0, span_s=70.0), [(10.0, 600.0, 110, 4), (60.0, 60.0, 2000, 1)]),
        (TraceSelection(groups=("lab",), gpus=(1,)), [(500.0, 60.0, 1000, 1)]),
        (TraceSelection(groups=("ann",), cap_s=100.0), [(50.0, 100.0, 110, 4)]),
        (TraceSelection(groups=("ann",), ignore=("cpus", "gpu_milli")), [(50.0, 600.0, 1000, 1)]),
    ],
)
def test_a_part_of_a_trace(
    tmp_path: Path, selection: TraceSelection, jobs: list[tuple[float, float, int, int]]
) -> None:
    assert [each[:4] for each in told(read_trace(file(tmp_path, COMMON), selection).jobs)] == jobs


def test_a_mix_of_vram_is_the_same_each_time_and_has_the_shares_it_says(tmp_path: Path) -> None:
    path = file(tmp_path, "submit_s,duration_s\n" + "".join(f"{n},60\n" for n in range(4000)))
    jobs, again, other = (
        read_trace(path, TraceSelection(vram_seed=seed)).jobs for seed in (7, 7, 8)
    )
    assert jobs == again != other
    assert 0.42 < sum(j.wants.vram_mib > 8000 for j in jobs) / len(jobs) < 0.48
    assert {j.wants.vram_mib for j in jobs} == {8000, 16000, 24000, 32000, 40000, 80000}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("t.csv", b"", "t.csv:1: the file is empty: a header line"),
        (
            "t.csv",
            b"submit,took\n1,2\n",
            "t.csv:1: there is no column `submit_s`: did you mean `submit`?",
        ),
        ("t.csv", b"submit_s,duration_s\n1,2,3\n", "t.csv:2: not as many fields as the header has"),
        (
            "t.csv",
            b"submit_s,duration_s\n1,2\n1,soon\n",
            "t.csv:3: `duration_s`: `soon` is no number",
        ),
        (
            "t.csv",
            b"submit_s,duration_s\n1,inf\n",
            "t.csv:2: `duration_s`: `inf` is not a number from 0 up",
        ),
        ("t.csv", b"submit_s,duration_s\n1,0\n", "t.csv: no job with a run time and a GPU in it"),
        ("t.csv", b"submit_s,duration_s\n1,2\n\xff,2\n", "not UTF-8"),
        (
            "t.csv",
            "submit_s,duration_s\n1,2\n".encode("utf-16"),
            "not UTF-8: save the file as UTF-8",
        ),
        (
            "t.csv",
            b"submit_s,duration_s,submit_s\n1,2,3\n",
            "t.csv:1: several columns are called `submit_s`",
        ),
        (
            "t.csv",
            b"submit_s,duration_s\n2026-01-02 03:04:05,2\n60,2\n",
            "`submit_s` has dates and seconds",
        ),
        ("t.csv.gz", b"submit_s,duration_s\n", "t.csv.gz:1: not a whole gzip file"),
        (
            "t.csv.gz",
            gzip.compress(b"submit_s,duration_s\n" + b"1,2\n" * 5000, mtime=0)[:50],
            "not a whole gzip file",
        ),
        ("", None, "directory"),
    ],
)
def test_a_bad_line_or_file_is_named_with_its_repair(
    tmp_path: Path, name: str, data: bytes | None, words: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    assert words in refused(tmp_path / name)


def test_many_bad_lines_are_counted_and_may_be_left_out(tmp_path: Path) -> None:
    path = file(tmp_path, "submit_s,duration_s\n" + "1,x\n" * 25 + "1,5\n")
    words = refused(path)
    assert "t.csv:11:" in words and "t.csv:12:" not in words
    assert (
        "and 15 more" in words
        and "25 bad lines: repair them, or leave them out: --skip-bad" in words
    )
    trace = read_trace(path, skip_bad=True)
    assert len(trace.jobs) == 1 and len(trace.bad) == 25


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("submit=A", "no column declared for duration"),
        ("submit=A,duration=B,gpu=C", "unknown field `gpu`: did you mean `gpus`?"),
        ("submit=A,duration=Tok", "there is no column `Tok`: did you mean `Took`?"),
    ],
)
def test_declarations_that_are_none(tmp_path: Path, declared: str, words: str) -> None:
    with pytest.raises(TraceError, match=re.escape(words)):
        read_trace(file(tmp_path, "A,Took\n1,2\n"), columns=declared_columns(declared))


def test_an_owners_series_with_waiting_jobs_or_without(tmp_path: Path) -> None:
    path = file(tmp_path, SERIES)
    assert read_loads(path)["a"] == OwnerLoadSeries("a", 10, ((0.0, 6), (90000.0, 8)))
    busy = read_loads(path, pending=False)["a"]
    assert busy.steps == ((0.0, 4), (90000.0, 8))
    assert busy.scaled(5).steps == ((0.0, 2), (90000.0, 4))
    assert busy.repeated(3 * 86400.0).steps == (
        (0.0, 4),
        (90000.0, 8),
        (172800.0, 4),
        (262800.0, 8),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vc,t_s\n", "t.csv:1: there is no column `total_gpus`"),
        (SERIES.replace("a,0,10,4,2", "a,0,10,4"), "t.csv:2: not a row of"),
        (SERIES.replace("b,0,4,4,0", "b,0,4,nan,0"), "t.csv:4: not a row of"),
    ],
)
def test_a_broken_series(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TraceError, match=re.escape(words)):
        read_loads(file(tmp_path, text))
