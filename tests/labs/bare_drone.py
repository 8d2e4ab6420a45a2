"""A whole drone without HTCondor: stand-ins for two of its programs take it as far as the start of its master."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner.drone import script
from tests.labs.htcondor import account, own

GPU = "GPU-a0223334"
UUID = "GPU-a0223334-4445-5667-899a-abbccddeeff0"
DISCOVERY = f"""echo 'DetectedGPUs="{GPU}, {GPU}"'
echo 'GPU_a0223334=[ id="{GPU}"; Capability=8.0; DeviceMemoryMb=40960; DeviceUuid="{UUID[4:]}"; GlobalMemoryMb=20480; ]'
"""
MASTER = 'grep -E "^(GpuGuard|VramEnforced) =" "$CONDOR_CONFIG"\nsleep 2\n'


@dataclass
class BareDrone:
    """A drone of one GPU, which ends soon after it has started its master."""

    home: Path
    process: subprocess.Popen[str]

    def wait(self, timeout: float = 300) -> tuple[int, dict[str, str]]:
        """Return exit status and outcome."""
        said = self.process.communicate(timeout=timeout)[0]
        assert (self.home / "outcome").exists(), said
        outcome = (
            (self.home / "outcome").read_text().strip().replace("%20", " ").replace("%3D", "=")
        )
        return self.process.returncode, dict(re.findall(r"(\w+)=(.*?)(?= \w+=|$)", outcome))


def bare_drone(
    lab: Path,
    programs: Path,
    name: str = "d",
    *,
    discovery: str = DISCOVERY,
    around: Sequence[str] = (),
    checks: Mapping[str, str] = {},
    **env: str,
) -> BareDrone:
    """Start a drone in a directory of that name, with programs of NVIDIA's in another one.

    ``discovery``: text of ``condor_gpu_discovery``. ``around``: beginning of the command.
    ``checks``: the site's own.
    """
    condor, home = lab / "condor-prefix", lab / name
    (home / "checks").mkdir(parents=True)
    files = {
        condor / "sbin/condor_master": MASTER,
        condor / "libexec/condor/condor_gpu_discovery": discovery,
    }
    for file, text in {
        **files,
        **{home / "checks" / each: text for each, text in checks.items()},
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}")
        file.chmod(0o755)
    (home / "token").write_text("none")
    (home / "drone.sh").write_bytes(script("condor_drone.sh"))
    account().give(home, condor)
    told = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "CONDOR_PREFIX": str(condor),
        "DRONE_DIR": str(home),
        "DRONE_COLLECTOR": "127.0.0.1:1",
        "DRONE_TRUST_DOMAIN": "t",
        "DRONE_ID": own(f"d{len(name)}"),
        "DRONE_SITE": "s",
        "DRONE_TYPE": "t",
        "DRONE_GPUS": "1",
        "DRONE_CPUS": "1",
        "DRONE_MEMORY_MIB": "100",
        "DRONE_DISK_MIB": "1",
        "DRONE_VRAM_MIB": "40960",
        "DRONE_GPU_SIMULATE": "4,1",
    }
    process = subprocess.Popen(
        [*around, "sh", "drone.sh"],
        env={**told, **env},
        cwd=home,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **account().run,
    )
    return BareDrone(home, process)
