"""GPUs without a GPU: fake ``libcuda.so.1``, ``libnvidia-ml.so.1`` and ``nvidia-smi``, whose loads a test sets.

The programs under test are the real ones (``condor_gpu_discovery``, ``condor_gpu_utilization``, the
startd, the drone); only NVIDIA's libraries are replaced, by ``fake_gpu.c``. Its comment describes
the state files.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class FakeGpus:
    """Fake A100 GPUs of 40,536 MiB; programs with :attr:`env` in their environment find them."""

    directory: Path
    count: int = 2

    @classmethod
    def build(cls, directory: Path, count: int = 2) -> FakeGpus:
        """Compile the libraries into a directory that all accounts can enter, once; skip the test without a compiler.

        State that an earlier test left there is removed.
        """
        compiler = shutil.which("cc") or shutil.which("gcc")
        if not compiler:
            pytest.skip("no C compiler (cc or gcc) for the fake GPU libraries")
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        gpus = cls(directory, count)
        if not (directory / "nvidia-smi").exists():
            cuda, nvml, smi = (
                directory / name for name in ("libcuda.so.1", "libnvidia-ml.so.1", "nvidia-smi")
            )
            # HTCondor's tools have variables with the names of the functions, which the library
            # must not call.
            library = ("-shared", "-fPIC", "-O1", "-Wall", "-Wl,-Bsymbolic")
            _run(compiler, *library, "-o", cuda, SOURCES / "fake_gpu.c")
            for name in (nvml, directory / "libcuda.so", directory / "libnvidia-ml.so"):
                name.unlink(missing_ok=True)
                name.symlink_to(cuda.name)
            program = (SOURCES / "fake_nvidia_smi.c", cuda, "-Wl,-rpath,$ORIGIN")
            _run(compiler, "-D_GNU_SOURCE", "-O1", "-Wall", "-o", smi, *program)
        shutil.rmtree(gpus.state, ignore_errors=True)
        gpus.state.mkdir()
        gpus.state.chmod(0o777)  # jobs of any account declare their loads there
        gpus._write("count", str(count))
        return gpus

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def env(self) -> Mapping[str, str]:
        """Environment of a program that uses the GPUs; ``nvidia-smi`` is on its PATH. The libraries
        also work with LD_LIBRARY_PATH alone, as in a job."""
        return {
            "LD_LIBRARY_PATH": str(self.directory),
            "PATH": f"{self.directory}:/usr/bin:/bin",
            "FAKE_GPUS": str(self.count),
            "FAKE_GPU_STATE": str(self.state),
            # whose process ids the fake NVML has
            "DRONE_PID_NAMESPACE": os.readlink("/proc/self/ns/pid"),
        }

    @property
    def drone_env(self) -> Mapping[str, str]:
        """Environment on top of :func:`tests.labs.htcondor.start_drone`'s: a drone with all of the GPUs."""
        return {
            **self.env,
            "DRONE_GPUS": str(self.count),
            "DRONE_GPU_MILLI": str(1000 * self.count),
            "DRONE_GPU_SIMULATE": "",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.count))),
        }

    def uuid(self, n: int, instance: int | None = None) -> str:
        """Return the UUID of a GPU, or of one of its MIG instances, as NVML prints it."""
        octets = [(0xA0 + n * 16 + i) % 256 for i in range(16)]
        if instance is not None:
            octets[3] = instance
        text = bytes(octets).hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return "-".join(("GPU" if instance is None else "MIG", *parts))

    def driver(self, version: str, cuda: int) -> None:
        """Set the driver's version, and the newest CUDA that it supports: 12020 is 12.2."""
        self._write("driver", f"{version} {cuda}")

    def set(self, n: int, percent: int, used_mib: int = 0) -> None:
        """Set the load and the used memory of a GPU beside those of its processes."""
        self._write(f"gpu.{n}", f"{percent} {used_mib}")

    def property(self, n: int, **values: int) -> None:
        """Set properties of a GPU by their names in ``fake_gpu.c``: ``ecc_uncorrected=1``, ``pcie_width=8``."""
        for name, value in values.items():
            self._write(f"gpu.{n}.{name}", str(value))

    def mig(self, n: int, instances: int, mib: int = 4864) -> None:
        """Enable MIG on a GPU, with so many instances of so much memory; 0 disables it."""
        self._write(f"gpu.{n}.mig", f"{instances} {mib}")

    def process(self, pid: int, n: int | str, percent: int, mib: int, *, mps: bool = False) -> None:
        """Declare a process on a GPU: a number, ``"N:INSTANCE"`` or a UUID. It counts while the process lives.

        ``mps``: it is a client of MPS, whose use NVML charges to the server: declare that as well.
        """
        self._write(f"process.{pid}", f"{n} {percent} {mib}{' mps' if mps else ''}")

    def forget(self, pid: int) -> None:
        """Withdraw what was declared of a process."""
        (self.state / f"process.{pid}").unlink(missing_ok=True)

    def declare(self, percent: int, mib: int, n: int | str = "${CUDA_VISIBLE_DEVICES%%,*}") -> str:
        """Return a line of shell by which a job declares its own load, by default on its first GPU."""
        return f'echo "{n} {percent} {mib}" >{shlex.quote(str(self.state))}/process.$$'

    def fail(self, function: str, code: int | None = None) -> None:
        """Make a function of the libraries return an error code, or hang (None)."""
        self._write(f"fail.{function}", "hang" if code is None else str(code))

    def repair(self, function: str) -> None:
        """Make a function work again."""
        (self.state / f"fail.{function}").unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        # A program under test may read at any time, under another account.
        new = self.state / f".{name}.new"
        new.write_text(f"{text}\n")
        new.chmod(0o644)
        os.replace(new, self.state / name)


def _run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, timeout=300)
