"""Files of drones on the host that submits them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from adapters.htcondor.site.submission import JobFiles, SubmitDescription
from adapters.shared.commands.local import LocalRunner, own_environment
from provisioner.model import DroneId


async def test_batches_with_the_same_files_are_laid_out_side_by_side(tmp_path: Path) -> None:
    files = {"drone.sh": b"#!/bin/sh\n" * 100000, "token": b"secret", "checks/gpu.sh": b"exit 0\n"}
    runner = LocalRunner(own_environment())
    for n in range(3):
        root = tmp_path / str(n)
        batches = [SubmitDescription("", (DroneId(f"kit-{k}"),), files) for k in range(6)]
        [macros] = set(await asyncio.gather(*(JobFiles(str(root), 60.0).lay_out(runner, each) for each in batches)))
        place = root / "inputs" / batches[0].digest
        assert macros == f"inputs = {place}\noutputs = {root}/outputs\n"
        found = {str(f.relative_to(place)): f.read_bytes() for f in place.rglob("*") if f.is_file()}
        assert {name: content for name, content in found.items() if not name.startswith("put.")} == files
        assert [each.name for each in (root / "inputs").iterdir()] == [place.name]
        assert place.stat().st_mode & 0o777 == 0o700
        assert {each.name for each in (root / "outputs").iterdir()} == {f"kit-{k}" for k in range(6)}
