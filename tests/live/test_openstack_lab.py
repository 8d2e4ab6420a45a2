"""The OpenStack lab itself: nova says what real ones say, guests run and end, ports and volumes come and go, services
fail on order, and nothing is left."""

from __future__ import annotations

import base64
import http.client
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.labs.htcondor import Condor, own, processes_with, until
from tests.labs.openstack import OWNER, OpenStack, OpenStackLab, Refusal, Session, running_openstack

pytestmark = pytest.mark.xdist_group("openstack")

FROM_IMAGE = {"boot_index": 0, "source_type": "image", "destination_type": "volume", "volume_size": 1}


@pytest.fixture
def cloud(openstack: OpenStackLab) -> OpenStackLab:
    return openstack


@pytest.fixture
def tenant(cloud: OpenStackLab) -> Session:
    return cloud.session()


def test_servers_come_are_listed_and_go(cloud: OpenStackLab, tenant: Session) -> None:
    before = (datetime.now(UTC) - timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    ids = [
        cloud.boot(f"drone-{flavor}", flavor, tags=["drone", own("lab")], metadata={"drone": flavor})
        for flavor in ("cpu.small", "gpu.h100.vgpu", "gpu.h100.pci")
    ]
    for number in ids:
        server = cloud.reaches(number, "ACTIVE", "ERROR")
        assert (server["status"], server["OS-EXT-STS:power_state"]) == ("ACTIVE", 1)
        assert (server["flavor"]["original_name"], server["metadata"]) == (
            server["metadata"]["drone"],
            {"drone": server["flavor"]["original_name"]},
        )
    assert {each["id"] for each in cloud.servers(tags=f"drone,{own('lab')}")} == set(ids)
    assert cloud.servers(tags="other") == []

    pages, url = [], "nova:/servers?limit=2"
    while url:
        said = tenant("GET", url)
        pages.append(len(said["servers"]))
        url = next((link["href"] for link in said.get("servers_links", ())), "")
        assert not url or url.startswith(cloud.nova.url)
    assert pages == [2, 1]

    tenant("DELETE", f"nova:/servers/{ids[0]}")
    cloud.reaches(ids[0], "GONE")
    assert tenant.ask("DELETE", f"nova:/servers/{ids[0]}")[0] == 404
    changed = {each["id"]: each["status"] for each in cloud.servers(**{"changes-since": before})}
    # What a test before has deleted a moment ago is told as well.
    assert [changed.get(number) for number in ids] == ["DELETED", "ACTIVE", "ACTIVE"]
    assert {each["id"] for each in cloud.servers()} == set(ids[1:])


def test_it_says_why_there_is_no_server(cloud: OpenStackLab) -> None:
    no_host = cloud.boot("drone-1", "gpu.absent")
    cloud.faults({"name": "drone-2", "error": "the GPU fell off the bus"})
    aborted = cloud.boot("drone-2")
    assert cloud.reaches(no_host, "ERROR")["fault"]["message"].startswith("No valid host was found.")
    assert "the GPU fell off the bus" in cloud.reaches(aborted, "ERROR")["fault"]["message"]
    for flavor, status, kind in (("nope", 400, "badRequest"), (cloud.flavors["cpu.small"], 403, "forbidden")):
        cloud.set_quota(instances=2)  # servers in ERROR count
        with pytest.raises(Refusal) as refused:
            cloud.boot("drone-3", flavor)
        assert (refused.value.status, list(refused.value.document)) == (status, [kind])
    assert "Quota exceeded for instances" in refused.value.document[kind]["message"]


GUEST = """#!/bin/sh
export PROVISIONER_DRONE_ID={drone}
{condor}/usr/sbin/condor_master -version | grep -q CondorVersion || echo no HTCondor
trap 'echo asked to go; exit 0' TERM
echo "$(id -un) on $(hostname)"; touch /tmp/x /run/x /mnt/x /var/tmp/x && echo may write
touch /usr/x 2>/dev/null || echo not there
sleep 1000 & wait
"""


def test_a_guest_runs_and_ends_by_itself_or_when_it_is_told(cloud: OpenStackLab, newest_condor: Condor) -> None:
    ends = cloud.boot("ends", script="#!/bin/sh\necho hello\npoweroff\nsleep 1000\n")
    drone = own("guest")
    number = cloud.boot("runs", script=GUEST.format(drone=drone, condor=newest_condor.prefix))
    assert cloud.reaches(ends, "SHUTOFF")["OS-EXT-STS:power_state"] == 4
    assert cloud.console(ends) == "hello\n"
    until(lambda: "not there" in cloud.console(number), what="it has written")
    assert cloud.console(number) == "root on drone\nmay write\nnot there\n"
    found = processes_with(f"PROVISIONER_DRONE_ID={drone}\0")
    assert found and found.keys() <= cloud.guest(number).keys()
    cloud.take_back(number)
    cloud.reaches(number, "SHUTOFF")
    assert cloud.console(number).endswith("asked to go\n")
    assert cloud.guest(number) == {}
    for order, status in (("os-start", "ACTIVE"), ("pause", "PAUSED"), ("unpause", "ACTIVE"), ("suspend", "SUSPENDED")):
        cloud.take_back(number, order)
        cloud.reaches(number, status)
    assert cloud.guest(number)
    cloud.take_back(number, "delete")
    cloud.reaches(number, "GONE")
    assert cloud.guest(number) == {}


def test_ports_and_volumes_go_with_their_server_or_stay(cloud: OpenStackLab, tenant: Session) -> None:
    disk = {**FROM_IMAGE, "uuid": cloud.image, "delete_on_termination": True}
    for kept in (False, True):
        number = cloud.boot("drone", port=True, block_device_mapping_v2=[disk])
        server = cloud.reaches(number, "ACTIVE", "ERROR")
        assert server["status"] == "ACTIVE", server
        (port,) = tenant("GET", f"neutron:/ports?device_id={number}")["ports"]
        (address,) = server["addresses"]["drones"]
        assert (port["status"], port["fixed_ips"][0]["ip_address"]) == ("ACTIVE", address["addr"])
        (volume,) = tenant("GET", "cinder:/volumes/detail")["volumes"]
        assert (volume["status"], volume["attachments"][0]["server_id"]) == ("in-use", number)
        assert tenant.ask("DELETE", f"cinder:/volumes/{volume['id']}")[0] == 400
        assert cloud.session(OWNER)("GET", "neutron:/ports")["ports"] == []
        cloud.network.keep_ports = cloud.volumes.keep_volumes = kept
        tenant("DELETE", f"nova:/servers/{number}")
        cloud.reaches(number, "GONE")
        left = [*cloud.ports(), *cloud.disks()]
        assert [each["id"] for each in left] == ([port["id"], volume["id"]] if kept else [])
    assert left[1]["status"] == "available"
    tenant("DELETE", f"neutron:/ports/{port['id']}")
    tenant("DELETE", f"cinder:/volumes/{volume['id']}")
    assert tenant("GET", "neutron:/ports")["ports"] == tenant("GET", "cinder:/volumes")["volumes"] == []


def test_services_fail_on_order_and_count_their_calls(cloud: OpenStackLab, tenant: Session) -> None:
    tenant.login()
    url, seen = f"{cloud.nova.url}/v2.1/servers", cloud.nova.seen
    busy = {"status": 429, "headers": {"Retry-After": "7"}}
    with cloud.nova.failing(status=503, path="/servers", times=1), cloud.keystone.failing(**busy):
        assert tenant.ask("GET", url)[0] == 503
        assert tenant.ask("GET", url)[0] == 200
        status, headers, _ = tenant._raw("GET", f"{cloud.auth_url}/auth/tokens", {}, None)
        assert (status, headers["retry-after"]) == (429, "7")
    server = {"name": "late", "flavorRef": cloud.flavors["cpu.small"], "imageRef": cloud.image, "networks": "none"}
    order = {"server": server}
    for cut, made in (("before", 0), ("after", 1)):
        with cloud.nova.failing(method="POST", cut=cut), pytest.raises((http.client.HTTPException, OSError)):
            tenant.ask("POST", url, order)
        assert len(cloud.servers()) == made
    with cloud.nova.failing(method="POST", late_s=1.5):
        began = time.monotonic()
        assert tenant.ask("POST", url, order)[0] == 202
        assert time.monotonic() - began >= 1.5
    assert len(cloud.servers()) == 2
    assert len(cloud.nova.calls("GET", "/servers", after=seen)) == 2
    assert [each.status for each in cloud.nova.calls("POST", after=seen)] == [0, 0, 202]


def test_credentials_end_and_tokens_run_out(cloud: OpenStackLab) -> None:
    def status(session: Session) -> int:
        url = cloud.settings.url("nova") + "/v2.1/servers"
        return session._raw("GET", url, {"X-Auth-Token": session.token}, None)[0]

    made = cloud.new_credential()
    told = {"id": made.id, "secret": made.secret}
    session = Session(cloud, {"identity": {"methods": ["application_credential"], "application_credential": told}})
    session.login()
    assert status(session) == 200
    cloud.revoke(made)
    until(lambda: status(session) == 401, 30, what="nova refuses the token")
    with pytest.raises(Refusal) as refused:
        session.login()
    assert refused.value.status == 404  # keystone says that there is none; a wrong secret is a 401

    cloud.restart("keystone", token_s=5)
    try:
        session = cloud.session()
        session.login()
        assert status(session) == 200
        until(lambda: status(session) == 401, 30, what="the token has run out")
        assert session("GET", "nova:/servers") == {"servers": []}
    finally:
        cloud.restart("keystone", token_s=3600)


def test_what_admins_make_is_gone_after_a_reset(cloud: OpenStackLab, tenant: Session) -> None:
    flavor, image = cloud.new_flavor("gpu.tiny", **{"resources:VGPU": "1"}), cloud.new_image("other")
    tenant("POST", "nova:/os-keypairs", {"keypair": {"name": "mine", "type": "ssh", "public_key": SSH_KEY}})
    cloud.set_quota(instances=1)
    number = cloud.boot("drone", flavor, imageRef=image, user_data=base64.b64encode(b"#cloud-config\n").decode())
    cloud.reaches(number, "ACTIVE")
    cloud.reset()
    assert cloud.servers() == []
    assert {each["name"] for each in tenant("GET", "nova:/flavors")["flavors"]} == cloud.flavors.keys()
    assert [each["id"] for each in tenant("GET", "glance:/images")["images"]] == [cloud.image]
    assert tenant("GET", "nova:/os-keypairs") == {"keypairs": []}
    assert tenant("GET", "nova:/limits")["limits"]["absolute"]["maxTotalInstances"] == 10


SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl lab"


@pytest.mark.matrix
def test_labs_stand_side_by_side_and_leave_nothing(openstack: OpenStackLab, openstack_programs: OpenStack) -> None:
    with running_openstack(openstack_programs, hosts=("gpu01",), shutdown_s=2) as other:
        directory = other.directory
        number = other.boot("drone", "gpu.h100.vgpu", script="#!/bin/sh\ntrap '' TERM\nsleep 1000; sleep 1000\n")
        other.reaches(number, "ACTIVE")
        assert openstack.server(number)["status"] == "GONE"
        other.take_back(number)  # it does not listen
        other.reaches(number, "SHUTOFF")
        other.take_back(number, "os-start")
        other.reaches(number, "ACTIVE")
        until(lambda: other.guest(number), what="it runs")
        processes = {each.pid for each in other.processes.values()}
    assert processes_with(str(directory)) == {}
    assert not directory.exists()
    assert not {pid for pid in processes if (directory / f"/proc/{pid}").exists()}
