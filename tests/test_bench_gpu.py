"""``make bench-gpu`` with the fake GPU libraries: its steps, reasons to skip one, and the comparison with the model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import queueing, report
from benchmarks.gpu.client import HOST_WORK, PTX
from benchmarks.gpu.rig import Rig, Skipped
from benchmarks.gpu.run import run
from benchmarks.gpu.steps import Row
from provisioner import sharing
from provisioner.model import Sharing
from tests.labs.gpu import FakeGpus

ROOT = Path(__file__).parents[1]
MPS = """#!/bin/sh
# For nvidia-cuda-mps-control: has a server, and writes down its commands.
case ${1:-} in
    -d) touch "$CUDA_MPS_PIPE_DIRECTORY/control" ;;
    *)
        read -r words
        echo "$words" >>"$(dirname "$0")/said"
        case $words in get_server_list) echo 4242 ;; esac ;;
esac
"""
NO_MPS = "#!/bin/sh\necho no device files; exit 1\n"

Bench = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    return FakeGpus.build(tmp_path / "gpus")


@pytest.fixture
def bench(gpus: FakeGpus, tmp_path: Path) -> Bench:
    """Run the benchmark, with a program for MPS."""

    def start(*words: str, mps: str = NO_MPS) -> subprocess.CompletedProcess[str]:
        program = gpus.directory / "nvidia-cuda-mps-control"
        program.write_text(mps)
        program.chmod(0o755)
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu.run",
            "--seconds",
            "0.2",
            "--out",
            str(tmp_path / "out"),
            *words,
        ]
        return subprocess.run(
            command, cwd=ROOT, env=dict(gpus.env), capture_output=True, text=True, timeout=600
        )

    return start


def measured(directory: Path) -> Mapping[str, Any]:
    """Return the steps of the results."""
    steps: Mapping[str, Any] = json.loads((directory / "out/results.json").read_text())["steps"]
    return steps


def test_without_a_gpu_it_says_so_and_measures_nothing(
    bench: Bench, gpus: FakeGpus, tmp_path: Path
) -> None:
    for words in (("--gpu", "99"), ()):
        gpus.fail("cuLaunchKernel", 719)
        done = bench(*words)
        assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
        assert "no NVIDIA GPU that works here, so nothing was measured" in done.stdout
    assert "CUDA does not work on this GPU: cuLaunchKernel: CUDA_ERROR_UNKNOWN (719)" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.matrix
@pytest.mark.slow
def test_the_table_has_a_row_for_each_mode_beside_the_model(bench: Bench, tmp_path: Path) -> None:
    done = bench("--only", "table", mps=MPS)
    assert done.returncode == 0, done.stderr
    table = measured(tmp_path)["table"]
    modes = [(row["load"], row["mode"], row["trainings"]) for row in table["rows"]]
    small = [("small", "exclusive", 1), *(("small", "time-sliced", n) for n in (2, 4, 8, 12))]
    assert modes[:10] == [*small, *(("small", "mps", n) for n in (1, 2, 4, 8, 12))]
    assert [(row["load"], row["mode"], row["trainings"]) for row in table["comparison"]] == modes
    assert all(
        row["steps_per_s"] > 0 and row["joule_per_step"] > 0 and not row["failed"]
        for row in table["rows"]
    )
    assert 0 < table["rows"][0]["duty"] < 0.6 < table["rows"][10]["duty"]
    assert (
        table["verdict"]
        in (tmp_path / "out/results.md").read_text()
        == done.stdout.rstrip("\n") + "\n"
    )


def test_a_step_says_why_it_is_skipped_and_a_counter_that_is_missing_is_left_out(
    bench: Bench, gpus: FakeGpus, tmp_path: Path
) -> None:
    gpus.fail("nvmlDeviceGetTotalEnergyConsumption", 3)
    done = bench("--only", "limits", "kills", "table", "counters")
    assert done.returncode == 0, done.stderr
    found, why = measured(tmp_path), "the control daemon of MPS does not start: no device files"
    assert found["limits"] == found["kills"] == {"skipped": why}
    assert f'"skipped": "{why}"' in done.stdout
    assert found["table"]["skipped rows of MPS"] == why
    assert {row["energy"] for row in found["table"]["comparison"]} == {None}
    assert "| small | exclusive | 1 | 1.00 | 1.00 | 1.00 | 1.00 | - |" in done.stdout
    assert found["counters"]["mps"] == f"skipped: {why}"
    held = {"training with 512 MiB": 512, "training with 1024 MiB": 1024}
    assert found["counters"]["time-sliced"]["compute processes, MiB"] == held
    assert found["counters"]["time-sliced"]["SM, percent"] == dict.fromkeys(held, 50)


@pytest.mark.matrix
@pytest.mark.slow
def test_limits_kills_and_counters_under_mps(bench: Bench, gpus: FakeGpus, tmp_path: Path) -> None:
    done = bench("--only", "limits", "kills", "counters", mps=MPS)
    assert done.returncode == 0, done.stderr
    found, said = measured(tmp_path), (gpus.directory / "said").read_text().splitlines()
    limit = found["limits"]["limit, MiB"]
    assert limit == 40536 // 8
    assert said[0] == f"set_default_device_pinned_mem_limit 0 {limit}M", (
        "a server reads it when it starts"
    )
    over = found["limits"][f"two processes ask for {limit * 5 // 4} MiB each"]
    assert [each["code"] for each in over] == [2, 2]
    assert all(
        "ready" in each
        for each in found["limits"][f"two processes ask for {limit * 7 // 8} MiB each"]
    )
    assert sum(words.startswith("terminate_client 4242 ") for words in said) == 3
    for way, reply in (("SIGKILL alone", {"launched": True}), ("illegal address", {"code": 700})):
        tries = found["kills"][way].values()
        assert len(tries) == 3 and all(each["neighbour"]["survived"] for each in tries)
        assert all(each["new client works after, s"] > 0 for each in tries)
        assert all(reply.items() <= each["reply"].items() for each in tries)
    assert len(found["counters"]["mps"]["compute processes, MiB"]) == 2
    assert len(found["counters"]["mps"]["mps processes, MiB"]) == 2


def test_the_probe_checks_a_kernels_result_and_finds_memory_that_is_taken(
    bench: Bench, gpus: FakeGpus, tmp_path: Path
) -> None:
    assert bench("--only", "probe", "sampling").returncode == 0
    found = measured(tmp_path)
    assert (found["probe"]["free"]["wrong"], found["probe"]["free"]["mib"]) == (0, 40536 * 9 // 10)
    assert found["probe"]["95 % taken"]["code"] == 2
    assert found["sampling"]["ms per sample"] > 0
    gpus.property(0, corrupt=1)
    assert bench("--only", "probe").returncode == 0
    assert measured(tmp_path)["probe"]["free"]["wrong"] == 1


def rows(seen: Callable[[float, int], float]) -> list[Row]:
    """Return a table of small trainings, whose throughput is made from the model's and their number."""
    load, alone = sharing.Load(0.12, 0.1), 50.0
    modes = [
        (Sharing.EXCLUSIVE, 1),
        (Sharing.TIME_SLICED, 4),
        (Sharing.TIME_SLICED, 12),
        (Sharing.MPS, 12),
    ]
    models = [sum(sharing.rates(mode, [load] * n)) for mode, n in modes]
    return [
        Row("small", mode.value, n, alone * seen(model, n), 0.12 if n == 1 else 0.5, 0.1, 2.0 / n)
        for (mode, n), model in zip(modes, models, strict=True)
    ]


def test_rows_within_a_tenth_of_the_model_agree_and_others_are_named() -> None:
    agreeing = report.compare(rows(lambda model, n: model * (1.09 if n > 1 else 1)))
    assert report.verdict(agreeing) == "All 4 rows are within 10% of the model."
    assert [round(row.ratio, 2) for row in agreeing] == [1, 1.09, 1.09, 1.09]
    assert [row.energy for row in agreeing] == [1, 1 / 4, 1 / 12, 1 / 12]
    off = report.verdict(report.compare(rows(lambda model, n: model * (0.8 if n == 12 else 1))))
    busy = rows(lambda model, n: model * (0.8 if n == 12 else 1))
    assert report.capacity(busy) == {
        "small time-sliced x12": "0.50, model 0.62",
        "small mps x12": "0.90, model 1.12",
    }
    assert off.startswith(
        "2 of 4 rows are more than 10% off the model (measured / model): small time-sliced x12 (0.80), "
    )


def test_the_queue_of_one_gpu_divides_its_capacity_among_the_kernels_on_it() -> None:
    assert queueing.rates([0.3], 0.5) == pytest.approx([1.0], rel=0.02), "one alone"
    assert queueing.rates([1.0, 1.0], 0.94) == pytest.approx([0.47, 0.47], rel=0.01)
    # Deterministic: a kernel of 0.5 beside another all the time takes 1.0, so a step takes 1.5.
    assert queueing.rates([1.0, 0.5], 1.0) == pytest.approx([2 / 3, 2 / 3], rel=0.02)
    assert sum(queueing.rates([0.126] * 12, 0.945)) == pytest.approx(0.945 / 0.126, rel=0.03)
    busy = rows(lambda model, n: model * (0.8 if n == 12 else 1))
    assert report.implied(busy) == {
        ("time-sliced", 0.1): pytest.approx(0.496),
        ("mps", 0.1): pytest.approx(0.896),
    }


def test_mixed_trainings_are_compared_one_by_one(bench: Bench, tmp_path: Path) -> None:
    done = bench("--only", "mixed")
    assert done.returncode == 0, done.stderr
    mixed = measured(tmp_path)["mixed"]
    assert mixed["mps"] == "skipped: the control daemon of MPS does not start: no device files"
    assert all(
        len(mix["rates"]) == len(mix["model"]) == len(mix["loads"]) for mix in mixed["mixes"]
    )
    assert set(mixed["duty alone"]) == {"saturating", "small", "half", "narrow"}
    assert "| time-sliced | half | saturating, small | " in done.stdout


def test_the_host_work_of_a_training_has_its_mean_in_each_ten_steps() -> None:
    assert sum(HOST_WORK) == pytest.approx(len(HOST_WORK)) and len(HOST_WORK) == 10


def test_a_step_that_fails_is_told_from_one_that_is_skipped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def skips(rig: Rig, seconds: float) -> dict[str, Any]:
        raise Skipped("no MPS")

    def fails(rig: Rig, seconds: float) -> dict[str, Any]:
        raise ZeroDivisionError("no steps")

    rig: Any = None
    assert run(skips, rig, 1) == {"skipped": "no MPS"}
    assert run(fails, rig, 1) == {"failed": "ZeroDivisionError: no steps"}


def test_the_kernels_are_ptx_that_nvidias_assembler_takes(tmp_path: Path) -> None:
    if not shutil.which("ptxas"):
        pytest.skip("ptxas (CUDA toolkit) is not on this host")
    source = tmp_path / "kernels.ptx"
    source.write_bytes(PTX)
    command = ["ptxas", "-arch=sm_80", str(source), "-o", str(tmp_path / "kernels.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
