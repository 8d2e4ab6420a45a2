"""The lab's hypervisor: nova's own fake driver, with GPUs and with guests that run.

A guest is a server's ``user_data``, run by ``guest.sh`` in place of a machine that boots. When it
ends it has powered itself off. Powering off sends its first process SIGTERM and waits as ACPI's
power button does; deleting kills.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import os_resource_classes as orc
from nova.compute import power_state
from nova.virt import fake
from oslo_serialization import jsonutils

LAB = Path(os.environ["OPENSTACK_LAB"])
GUEST = Path(__file__).with_name("guest.sh")
# A guest ends with the thread that started it, so that has to be one that stays.
_starter = ThreadPoolExecutor(1, "guests")


class Guest:
    """The processes of one server that is on."""

    def __init__(self, instance: Any) -> None:
        folder = LAB / "guests" / instance.uuid
        (folder / "mnt").mkdir(parents=True, exist_ok=True)
        user_data = base64.b64decode(instance.user_data or "")
        if user_data.startswith(b"\x1f\x8b"):  # cloud-init decompresses it too
            user_data = gzip.decompress(user_data)
        (folder / "mnt/user_data").write_bytes(user_data)
        told = {  # as the metadata service would say it
            "uuid": instance.uuid,
            "name": instance.display_name,
            "meta": dict(instance.metadata),
            "vcpus": instance.flavor.vcpus,
            "memory_mb": instance.flavor.memory_mb,
        }
        (folder / "mnt/meta_data.json").write_text(json.dumps(told))
        with (folder / "console.log").open("ab") as console:
            self.process = _starter.submit(
                subprocess.Popen,
                [str(GUEST), str(folder / "mnt")],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OPENSTACK_SERVER": instance.uuid},
            ).result()

    @property
    def is_on(self) -> bool:
        return self.process.poll() is None

    def tree(self) -> list[int]:
        """Its processes but bubblewrap's two: the first is the script's."""
        monitor = _children(self.process.pid)
        first = [pid for init in monitor for pid in _children(init)]
        found = list(first)
        for pid in found:
            found += _children(pid)
        return found

    def signal(self, sig: signal.Signals) -> None:
        for pid in self.tree():
            with suppress(ProcessLookupError):
                os.kill(pid, sig)

    def shut_down(self, within_s: float) -> None:
        """As the power button does, and at last as the plug."""
        self.signal(signal.SIGCONT)
        for pid in self.tree()[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        self.kill()

    def kill(self) -> None:
        """bubblewrap ends with its parent, and its first process ends all the others."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class LabDriver(fake.FakeDriver):
    vcpus, memory_mb, local_gb = 64, 524288, 4000
    gpus = 4
    """PCI devices 10de:2330, for flavors with ``pci_passthrough:alias=h100:1``."""
    vgpus = 4
    """VGPU with the trait CUSTOM_GPU_H100, for flavors with ``resources:VGPU=1``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.guests: dict[str, Guest] = {}

    # ------------------------------------------------------------------------------------------------------
    # hosts

    def get_nodenames_by_uuid(self, refresh=False):
        # The same at every start; the fake driver makes new ones.
        return {_node_uuid(name): name for name in self.get_available_nodes()}

    def get_available_resource(self, nodename):
        found = super().get_available_resource(nodename)
        if found:
            found["uuid"] = _node_uuid(nodename)
            found["pci_passthrough_devices"] = jsonutils.dumps(
                [_gpu(number) for number in range(self.gpus)]
            )
        return found

    def update_provider_tree(self, provider_tree, nodename, allocations=None):
        super().update_provider_tree(provider_tree, nodename, allocations)
        child = f"{nodename}_vgpu"
        if not provider_tree.exists(child):
            provider_tree.new_child(name=child, parent=nodename)
        inventory = {
            "total": self.vgpus,
            "reserved": 0,
            "min_unit": 1,
            "max_unit": self.vgpus,
            "step_size": 1,
            "allocation_ratio": 1.0,
        }
        provider_tree.update_inventory(child, {orc.VGPU: inventory})
        provider_tree.add_traits(child, "CUSTOM_GPU_H100")

    # -----------------------------------------------------------------------------------------------------
    # servers

    def spawn(self, context, instance, *args, power_on=True, **kwargs):
        super().spawn(context, instance, *args, power_on=power_on, **kwargs)
        if power_on:
            self._boot(instance)

    def _boot(self, instance: Any) -> None:
        self._unplug(instance)
        if instance.user_data:
            self.guests[instance.uuid] = Guest(instance)

    def _unplug(self, instance: Any) -> None:
        if guest := self.guests.pop(instance.uuid, None):
            guest.kill()

    def destroy(self, context, instance, *args, **kwargs):
        self._unplug(instance)
        return super().destroy(context, instance, *args, **kwargs)

    def power_off(self, instance, timeout=0, retry_interval=0):
        if guest := self.guests.get(instance.uuid):
            guest.shut_down(timeout)
        return super().power_off(instance, timeout, retry_interval)

    def power_on(self, context, instance, *args, **kwargs):
        self._boot(instance)
        return super().power_on(context, instance, *args, **kwargs)

    def suspend(self, context, instance):
        if guest := self.guests.get(instance.uuid):
            guest.signal(signal.SIGSTOP)
        self.instances[instance.uuid].state = power_state.SUSPENDED

    def get_console_output(self, context, instance):
        console = LAB / "guests" / instance.uuid / "console.log"
        return console.read_bytes() if console.exists() else b""

    def get_info(self, instance, use_cache=True):
        found = super().get_info(instance, use_cache)
        guest = self.guests.get(instance.uuid)
        if guest and not guest.is_on:
            found.state = self.instances[instance.uuid].state = power_state.SHUTDOWN
        return found


def _node_uuid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def _gpu(number: int) -> dict[str, Any]:
    return {
        "address": f"0000:{0x10 + number:02x}:00.0",
        "product_id": "2330",
        "vendor_id": "10de",
        "numa_node": None,
        "status": "available",
        "dev_type": "type-PCI",
        "parent_addr": None,
        "label": "label_10de_2330",
    }
