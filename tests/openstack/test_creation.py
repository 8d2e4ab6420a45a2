"""Names looked up in a cloud, user data, the JSON of POST /servers, and starts that create no drone twice."""

from __future__ import annotations

import asyncio
import base64
import gzip
import secrets
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from adapters.openstack import creation
from adapters.openstack.registry import ServerNames
from adapters.openstack.servers import Server
from adapters.openstack.settings import OpenStackSiteConfig
from adapters.shared.parcel import UnfitError
from provisioner import drone as drone_files
from provisioner.interfaces import RejectedError
from provisioner.model import (
    Bootstrap,
    DroneId,
    DroneType,
    FaultKind,
    OrderOutcome,
    OrderResult,
    StartOrder,
)
from tests.openstack.fake_openstack import (
    A100,
    CONTROLLER,
    IMAGE,
    NETWORK,
    SITE,
    Clock,
    FakeCloud,
    Nova,
    created,
    drone,
    flavor,
    has,
    image,
    order,
    site_config,
)

NAMES = ServerNames(CONTROLLER, SITE)
FLAVOR = "id-of-gpu.a100.1"
OK, REJECTED, UNKNOWN = OrderOutcome.OK, OrderOutcome.REJECTED, OrderOutcome.UNKNOWN


def names(
    fake: FakeCloud, nova: Nova, clock: Clock | None = None, **options: Any
) -> creation.NameResolver:
    return creation.NameResolver(nova, site_config(fake, **options), clock or Clock())


async def refusal(fake: FakeCloud, nova: Nova, **options: Any) -> str:
    """Why nothing can be made of the drone type."""
    with pytest.raises(RejectedError) as told:
        await names(fake, nova, **options).resolved(A100)
    assert told.value.kind is FaultKind.CONFIG
    return str(told.value)


async def test_names_are_looked_up(fake: FakeCloud, nova: Nova) -> None:
    fake.lists["images"] += [image(2), image(3, status="queued"), image(4, name="other")]
    fake.lists["security-groups"] = [
        {"id": "s1", "name": "default"},
        {"id": "s2", "name": "drones"},
    ]
    fake.lists["os-keypairs"] = [{"keypair": {"name": "admin"}}]
    found = names(fake, nova, security_groups=["drones"], key_pair="admin")
    assert await found.resolved(A100) == creation.ResolvedNames(
        FLAVOR, f"{IMAGE[:-1]}2", (NETWORK,), ("s2",)
    )


async def test_names_are_looked_up_once_in_a_while_and_after_an_error(
    fake: FakeCloud, nova: Nova
) -> None:
    clock = Clock()
    found = names(fake, nova, clock)
    await found.resolved(A100)
    asked = len(fake.asked)
    clock.now += 599
    await found.resolved(A100)
    assert len(fake.asked) == asked
    fake.lists["images"] = [image(7)]
    clock.now += 2
    assert (await found.resolved(A100)).image == f"{IMAGE[:-1]}7"
    fake.lists["images"] = [image(8)]
    found.forget()
    assert (await found.resolved(A100)).image == f"{IMAGE[:-1]}8"


@pytest.mark.parametrize(
    ("options", "lists", "message"),
    [
        (
            {"types": {"a100": {"flavor": "gpu.a100.2"}}},
            {},
            "no flavour `gpu.a100.2` for this project: did you mean",
        ),
        (
            {"networks": ["public"]},
            {},
            "there is no network `public` for this project: choose from drones",
        ),
        (
            {},
            {"networks": [{"id": n, "name": "drones"} for n in "12"]},
            "2 of this cloud's networks are called",
        ),
        ({}, {"images": [image(min_ram=32768)]}, "image `drone` wants 32 GiB of memory"),
        (
            {"boot_volume": {"size": "5 GiB"}},
            {},
            "`disk` of its boot volume is 5 GiB, of drone type `a100` 10 GiB",
        ),
        ({}, {"flavors": [flavor(extra_specs={})]}, "has 0 GPUs, drone type `a100` 1"),
        (
            {},
            {"flavors": [flavor(ram=8192)]},
            "`memory` of flavour `gpu.a100.1` is 8 GiB, of drone type `a100` 16 GiB",
        ),
        (
            {},
            {"flavors": [flavor(disk=5)]},
            "`disk` of flavour `gpu.a100.1` is 5 GiB, of drone type `a100` 10 GiB",
        ),
    ],
)
async def test_what_cannot_be_used_is_named_with_what_can(
    fake: FakeCloud, nova: Nova, options: dict[str, Any], lists: dict[str, Any], message: str
) -> None:
    fake.lists |= lists
    assert message in await refusal(fake, nova, **options)


H100 = DroneType(
    "gridka",
    "h100",
    gpu_milli=1000,
    cpus=16,
    memory_mib=131072,
    disk_mib=102400,
    walltime_s=86400.0,
)
TOKEN = ".".join(
    base64.urlsafe_b64encode(secrets.token_bytes(size)).rstrip(b"=").decode()
    for size in (60, 180, 32)
)
POOLED = Bootstrap(
    drone_files.script("condor_drone.sh"),
    {
        "DRONE_COLLECTOR": "pool.example.org:9618",
        "DRONE_TRUST_DOMAIN": "pool.example.org",
        "CONDOR_PREFIX": "",
    },
    {"token": TOKEN.encode(), "extra.conf": b"UPDATE_INTERVAL = 60\n" * 20},
)
ORDER = StartOrder(DroneId("kit-ab12-7"), H100, 600.0, 30.0, POOLED, epoch=3)


def config(special: Mapping[str, object] = {}, **more: object) -> OpenStackSiteConfig:
    told = {
        "cloud": "x",
        "image": "drone",
        "types": {"h100": {"flavor": "gpu.1", **special}},
        **more,
    }
    return OpenStackSiteConfig.model_validate(told)


def test_user_data_are_a_script_of_plain_ascii_without_a_visible_secret() -> None:
    script = gzip.decompress(creation.user_data(ORDER, config(), "grüße".encode()))
    assert script.startswith(b"#!/bin/sh\n")
    assert script.isascii()
    assert TOKEN.encode() not in script


def test_user_data_leave_room_for_a_setup_script() -> None:
    """Nova takes 65,535 bytes in base64."""
    size = len(base64.b64encode(creation.user_data(ORDER, config(), b"")))
    assert size < creation.MAX_USER_DATA - 4_800
    creation.user_data(ORDER, config(), secrets.token_bytes(3_500))
    with pytest.raises(UnfitError, match=r"user data are \d+ bytes and may be 65535"):
        creation.user_data(ORDER, config(), secrets.token_bytes(40_000))


GROUP = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
IDS = creation.ResolvedNames("17", IMAGE)


def asked(
    ids: creation.ResolvedNames = IDS, special: Mapping[str, object] = {}, **more: object
) -> tuple[dict[str, Any], dict[str, str]]:
    return creation.server_request(
        ORDER, config(special, **more), ServerNames("kit", "gridka"), ids, b"#!/bin/sh\n"
    )


def test_little_is_asked_for_where_little_is_told() -> None:
    body, hints = asked()
    assert hints == {}
    assert base64.b64decode(body.pop("user_data")) == b"#!/bin/sh\n"
    assert body == {
        "name": "kit-ab12-7",
        "flavorRef": "17",
        "imageRef": IMAGE,
        "networks": "auto",
        "metadata": {
            "provisioner_drone": "kit-ab12-7",
            "provisioner_controller": "kit",
            "provisioner_site": "gridka",
            "provisioner_type": "h100",
            "provisioner_epoch": "3",
        },
        "tags": ["gpu-drone", "kit.gridka", "kit-ab12-7"],
    }


def test_what_is_told_is_asked_for_and_of_a_type_before_the_site() -> None:
    body, hints = asked(
        replace(IDS, networks=(NETWORK,), security_groups=("drones", "egress")),
        {"availability_zone": "gpu", "metadata": {"tier": "2"}},
        availability_zone="nova",
        key_pair="anna",
        config_drive=False,
        server_group=GROUP,
        metadata={"tier": "1", "cost_centre": "wlcg"},
    )
    assert body["networks"] == [{"uuid": NETWORK}]
    assert body["security_groups"] == [{"name": "drones"}, {"name": "egress"}]
    assert (body["availability_zone"], body["key_name"], body["config_drive"]) == (
        "gpu",
        "anna",
        False,
    )
    assert (body["metadata"]["tier"], body["metadata"]["cost_centre"]) == ("2", "wlcg")
    assert hints == {"group": GROUP}


def test_a_boot_volume_is_made_of_the_image_and_goes_with_the_server() -> None:
    body, _ = asked(boot_volume={"size": "40.5 GiB", "type": "ssd"})
    assert "imageRef" not in body
    [volume] = body["block_device_mapping_v2"]
    assert (volume["uuid"], volume["volume_size"], volume["volume_type"]) == (IMAGE, 41, "ssd")
    assert volume["delete_on_termination"] is True


class Starter:
    """One site's starts."""

    def __init__(self, fake: FakeCloud, nova: Nova, **options: Any) -> None:
        self.creation = creation.ServerCreation(nova, site_config(fake, **options), NAMES)
        self.known: Collection[Server] = ()

    async def __call__(self, *orders: StartOrder) -> Sequence[OrderResult]:
        return await self.creation.start(orders, self.known)


@asynccontextmanager
async def starter(fake: FakeCloud, nova: Nova, **options: Any) -> AsyncIterator[Starter]:
    found = Starter(fake, nova, **options)
    yield found
    await found.creation.starts.close(60)


@pytest.fixture
async def start(fake: FakeCloud, nova: Nova) -> AsyncIterator[Starter]:
    async with starter(fake, nova) as found:
        yield found


def answers(results: Sequence[OrderResult]) -> list[OrderOutcome]:
    return [result.answer for result in results]


async def test_a_drone_that_has_a_server_gets_no_other(fake: FakeCloud, start: Starter) -> None:
    there = has(fake, drone(1))
    one, two = await start(order(1), order(2))
    assert (one.answer, one.remote_id, two.answer) == (OK, there, OK)
    assert created(fake) == [drone(2)]


async def test_a_server_in_a_cell_that_is_down_is_one_too(fake: FakeCloud, start: Starter) -> None:
    start.known = [Server("far", drone(1), "UNKNOWN", metadata=NAMES.metadata(drone(1), "a100"))]
    [result] = await start(order(1))
    assert (result.answer, result.remote_id, created(fake)) == (OK, "far", [])


async def test_a_create_without_an_answer_is_not_repeated(fake: FakeCloud, start: Starter) -> None:
    fake.fail("/servers", lambda _: web.Response(status=504), "POST")
    assert answers(await start(order(1), order(2))) == [UNKNOWN] * 2
    fake.heal()
    results = await start(order(1), order(3))
    assert answers(results) == [UNKNOWN, OK]
    assert results[0].fault is not None and "may still get through" in results[0].fault.message
    assert created(fake)[2:] == [drone(3)]

    late = has(fake, drone(1), status="BUILD")  # it has got through
    [result] = await start(order(1))
    assert (result.answer, result.remote_id) == (OK, late)
    fake.servers.clear()  # and is over: the next order is one of its own
    assert answers(await start(order(1))) == [OK]
    assert created(fake)[2:] == [drone(3), drone(1)]


async def test_a_cancelled_start_finishes_what_is_under_way_and_creates_no_more(
    fake: FakeCloud, nova: Nova
) -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> None:
        asked.set()
        await release.wait()

    fake.fail("/servers", slow, "POST")
    async with starter(fake, nova, parallel=1) as start:
        task = asyncio.create_task(start(order(1), order(2), order(3)))  # type: ignore[arg-type]
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stopped = asyncio.create_task(start.creation.starts.settled([drone(3)]))
        await asyncio.sleep(0.05)
        assert not stopped.done(), "a stop waits for creates that are under way"
        release.set()
        await stopped
        [first] = created(fake)
        assert [each["name"] for each in fake.servers.values()] == [first], "it was not cut"
        assert answers(await start(order(1), order(2), order(3))) == [OK] * 3
        assert sorted(created(fake)) == [drone(1), drone(2), drone(3)]


async def test_one_that_is_refused_does_not_hurt_another(fake: FakeCloud, nova: Nova) -> None:
    fake.quota = 1
    async with starter(fake, nova, parallel=1) as start:
        results = await start(order(1), order(2))
        assert answers(results) == [OK, REJECTED]
        assert results[1].fault is not None
        assert results[1].fault.kind is FaultKind.QUOTA
        assert "Quota exceeded for instances" in results[1].fault.message
        fake.servers.clear()
        assert answers(await start(order(2))) == [OK], (
            "a refusal is an answer: it may be asked for again"
        )


async def test_an_order_that_can_never_be_a_server_makes_none(
    fake: FakeCloud, start: Starter
) -> None:
    foreign = replace(order(1), drone_id=drone(1, "kit-two"))
    hostile = order(4, files={"../token": b""})
    large = order(3, files={"noise": secrets.token_bytes(80_000)})
    assert (
        answers(await start(foreign, order(2, env={"NOT A NAME": "x"}), hostile, large))
        == [REJECTED] * 4
    )
    assert created(fake) == []


async def test_a_setup_script_that_cannot_be_read_is_named(
    fake: FakeCloud, nova: Nova, tmp_path: Path
) -> None:
    missing = tmp_path / "setup.sh"
    async with starter(fake, nova, setup=str(missing)) as start:
        with pytest.raises(RejectedError, match=r"setup\.sh: No such file") as told:
            await start(order(1))
        assert told.value.kind is FaultKind.CONFIG
        missing.write_text("#!/bin/sh\n")
        assert answers(await start(order(1))) == [OK]
