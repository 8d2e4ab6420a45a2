"""The Slurm site keeps the contract of a site, on a real cluster, by each way to it.

Over ssh only in the matrix: what is said there is the same, and test_slurm_drones.py goes all four ways.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

from provisioner.adapter_tests import SiteContract, SiteWorld
from tests.labs.htcondor import OWN
from tests.labs.slurm import SlurmLab
from tests.labs.slurm_sites import SlurmWorld

_NTH = count(1)


class _OnSlurm(SiteContract):
    """``way``: a key of :func:`tests.labs.slurm_sites.ways`."""

    pytestmark: ClassVar = [pytest.mark.asyncio, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(180)]
    way = ""

    @pytest.fixture
    def world(self, slurm: SlurmLab, tmp_path: Path) -> Iterator[SiteWorld]:
        if slurm.slurm.version < (23, 11) and self.way in ("rest", "socket"):
            pytest.skip("this slurmrestd speaks v0.0.38 at most, and we v0.0.40 and later")
        # Slurm remembers ended jobs for minutes: a controller of its own for each test sees none of another's.
        yield SlurmWorld(slurm, self.way, tmp_path, f"kit{OWN}{os.getpid()}x{next(_NTH)}")
        slurm.empty()


class TestByTheToolsHere(_OnSlurm):
    way = "tools"


class TestByTheToolsOverSsh(_OnSlurm):
    pytestmark: ClassVar = [pytest.mark.matrix]
    way = "ssh"


class TestBySlurmrestd(_OnSlurm):
    way = "rest"


class TestBySlurmrestdBehindSsh(_OnSlurm):
    """At a unix socket on the login node."""

    pytestmark: ClassVar = [pytest.mark.matrix]
    way = "socket"
