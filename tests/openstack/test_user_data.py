"""User data: everything that a drone needs in one script, below Nova's limit, and no secret in plain sight."""

from __future__ import annotations

import base64
import secrets
from dataclasses import replace

import pytest

from adapters.openstack.creation import MAX_USER_DATA, user_data
from adapters.openstack.settings import OpenStackSiteConfig
from adapters.shared.parcel import UnfitError
from provisioner import drone
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder

H100 = DroneType("gridka", "h100", gpu_milli=1000, cpus=16, memory_mib=131072, disk_mib=102400, walltime_s=86400.0)
TOKEN = ".".join(base64.urlsafe_b64encode(secrets.token_bytes(size)).rstrip(b"=").decode() for size in (60, 180, 32))
POOLED = Bootstrap(
    drone.script("condor_drone.sh"),
    {"DRONE_COLLECTOR": "pool.example.org:9618", "DRONE_TRUST_DOMAIN": "pool.example.org", "CONDOR_PREFIX": ""},
    {"token": TOKEN.encode(), "extra.conf": b"UPDATE_INTERVAL = 60\n" * 20},
)
ORDER = StartOrder(DroneId("kit-ab12-7"), H100, 600.0, 30.0, POOLED)


def config(**more: object) -> OpenStackSiteConfig:
    told = {"cloud": "gridka", "image": "drone", "types": {"h100": {"flavor": "gpu.1"}}, **more}
    return OpenStackSiteConfig.model_validate(told)


def test_a_real_drone_is_far_below_the_limit() -> None:
    size = len(base64.b64encode(user_data(ORDER, config(), b"#!/bin/sh\nmount /cvmfs\n" * 20)))
    print(f"user data: {size} of {MAX_USER_DATA} bytes")
    assert size < MAX_USER_DATA * 0.8


def test_what_is_too_large_says_how_large() -> None:
    large = replace(ORDER, bootstrap=replace(POOLED, files={"more": secrets.token_bytes(40_000)}))
    with pytest.raises(UnfitError, match=r"may be 65535.*drone's files [6-9][0-9]{4} bytes, the setup script 0 bytes"):
        user_data(large, config(), b"")
    with pytest.raises(UnfitError, match="setup script 40000 bytes"):
        user_data(ORDER, config(), secrets.token_bytes(40_000))


def test_it_is_a_script_of_plain_ascii_that_shows_no_secret_to_who_reads_over_a_shoulder() -> None:
    script = user_data(ORDER, config(), "grüße".encode())
    assert script.startswith(b"#!/bin/sh\n")
    assert script.isascii()
    assert b"\r" not in script
    assert TOKEN.encode() not in script


def test_equal_orders_have_equal_user_data() -> None:
    assert user_data(ORDER, config(), b"x") == user_data(replace(ORDER), config(), b"x")
    assert user_data(ORDER, config(), b"x") != user_data(replace(ORDER, grace_s=31.0), config(), b"x")
