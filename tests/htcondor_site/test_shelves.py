"""Where the files of drones are kept on the controller's own host."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from adapters.htcondor.site.cluster import Submission
from adapters.htcondor.site.shelves import Shelves


def test_batches_with_the_same_files_are_laid_out_side_by_side(tmp_path: Path) -> None:
    files = {"drone.sh": b"#!/bin/sh\n" * 100000, "token": b"secret", "checks/gpu.sh": b"exit 0\n"}
    for n in range(20):
        shelves = Shelves(tmp_path / str(n))
        batches = [Submission("", ("drone_id",), ((f"kit-{k}",),), files) for k in range(6)]
        together = Barrier(6)

        def lay_out(batch: Submission, shelves: Shelves = shelves, together: Barrier = together) -> Path:
            together.wait()
            return shelves.lay_out(batch)

        with ThreadPoolExecutor(6) as pool:
            [place] = set(pool.map(lay_out, batches))
        assert {str(f.relative_to(place)): f.read_bytes() for f in place.rglob("*") if f.is_file()} == files
        assert [each.name for each in shelves.inputs.iterdir()] == [place.name]
        assert place.stat().st_mode & 0o777 == 0o700
        assert {each.name for each in shelves.outputs.iterdir()} == {f"kit-{k}" for k in range(6)}
