"""From the package to jobs done on a real pool, by the twelve commands of the guide to the first pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.labs.htcondor import Condor
from tests.live.conftest import SUITES, programs
from tests.live.test_first_real_pool import follow_the_guide
from tests.packages.conftest import run


def test_the_package_and_the_guide_end_with_jobs_done(
    packages: dict[str, Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("dpkg-deb", "-x", packages["deb"], tree := place / "guide")
    installed = f"mount -t tmpfs -o mode=755 none /opt && cp -a {tree}/opt/. /opt"
    program = ("/opt/gpu-drone-provisioner/bin/provisioner",)
    condor = programs(Condor.fetched, SUITES[-1])
    follow_the_guide(condor, monkeypatch, program, installed)
