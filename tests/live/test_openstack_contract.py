"""The OpenStack site keeps the contract of a site, on a real cloud: servers on a network that boot from volumes."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

from provisioner.adapter_tests import SiteContract, SiteWorld
from tests.labs.htcondor import OWN
from tests.labs.openstack import OpenStackLab
from tests.labs.openstack_sites import OpenStackWorld

_NTH = count(1)


class TestOnACloud(SiteContract):
    pytestmark: ClassVar = [pytest.mark.asyncio, pytest.mark.xdist_group("openstack"), pytest.mark.timeout(180)]

    @pytest.fixture
    def world(self, openstack: OpenStackLab, tmp_path: Path) -> SiteWorld:
        # Nova remembers deleted servers: a controller of its own for each test sees none of another's.
        return OpenStackWorld(openstack, tmp_path, f"kit{OWN}{os.getpid()}x{next(_NTH)}")
