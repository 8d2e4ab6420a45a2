"""How many GPUs a flavour asks for."""

from __future__ import annotations

import pytest

from adapters.openstack.capacity import gpus_of


@pytest.mark.parametrize(
    ("extra", "count"),
    [
        ({}, 0),
        ({"hw:cpu_policy": "dedicated", "resources:VCPU": "8", "trait:CUSTOM_GPU_H100": "required"}, 0),
        ({"resources:VGPU": "1"}, 1),
        ({"resources:PGPU": "2"}, 2),
        ({"resources1:VGPU": "1", "resources_GPU2:VGPU": "1"}, 2),
        ({"resources:CUSTOM_GPU_H100": "4"}, 4),
        ({"resources:CUSTOM_PCI_10DE_2330": "2"}, 2),
        ({"resources:CUSTOM_BAREMETAL_GPU": "1"}, 1),
        ({"resources:CUSTOM_BAREMETAL_LARGE": "1", "resources:CUSTOM_MAGIC": "3"}, 0),
        ({"pci_passthrough:alias": "h100:1"}, 1),
        ({"pci_passthrough:alias": "a100-80:2, ib:1"}, 2),
        ({"pci_passthrough:alias": "nvidia_l40s:1,nvme:4"}, 1),
        ({"pci_passthrough:alias": "tesla-t4:1,tesla-t4:1"}, 2),
        ({"pci_passthrough:alias": "mlx5:2"}, 0),
        ({"pci_passthrough:alias": "quickassist:1"}, 0),
        ({"pci_passthrough:alias": "accelerator:3"}, 3),
        ({"pci_passthrough:alias": "accelerator:3", "resources:VGPU": "1"}, 1),
        ({"accel:device_profile": "gpu-profile", "resources:VGPU": "1"}, 1),
    ],
)
def test_what_a_flavour_asks_for(extra: dict[str, str], count: int) -> None:
    assert gpus_of(extra) == count


@pytest.mark.parametrize(
    "extra",
    [
        {"accel:device_profile": "gpu-profile"},
        {"resources:VGPU": "many"},
        {"resources:VGPU": ""},
        {"pci_passthrough:alias": "h100"},
        {"pci_passthrough:alias": "h100:²"},
        {"pci_passthrough:alias": "h100:-1"},
    ],
)
def test_a_number_that_is_not_told(extra: dict[str, str]) -> None:
    assert gpus_of(extra) is None


def test_no_host_has_a_thousand_gpus() -> None:
    assert gpus_of({"resources:VGPU": "100000"}) == 64
    assert gpus_of({"resources:VGPU": "9" * 5000}) is None
