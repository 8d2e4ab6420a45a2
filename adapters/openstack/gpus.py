"""How many GPUs a flavour asks for, as its extra specs tell.

Nova has no word for GPUs. They come as resources of Placement (``resources:VGPU``, ``resources:PGPU``, classes that an
operator has named, ``CUSTOM_PCI_10DE_2330``: "Attaching virtual GPU devices" and "Attaching physical PCI devices" in
Nova's administration guide) or as devices behind an alias that the operator has named (``pci_passthrough:alias``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_RESOURCES = re.compile(r"resources[A-Za-z0-9_-]{0,64}:(?P<name>[A-Z0-9_]{1,255})")
_PLAIN = frozenset({"VGPU", "PGPU"})
_ALIASES = "pci_passthrough:alias"
_PROFILE = "accel:device_profile"
_MODEL = re.compile(
    r"gpu|nvidia|tesla|quadro|geforce|[gr]tx|instinct|pci_10de_|pci_1002_"
    r"|(?<![a-z0-9])(a|b|h|l|mi|p|t|v|gh|gb)\d{1,3}[a-z]?(?![0-9])",
    re.IGNORECASE,
)
"""What operators call GPUs: by the word, the maker, the PCI vendor's id, or the model."""
_ELSE = re.compile(
    r"nic|net|eth|sr-?iov|vf|(?<![a-z])(ib|cx\d|hca|roce|rdma|mlx\w*|mellanox|ssd|nvme|disk|qat|usb|audio)(?![a-z])"
    r"|infiniband|connectx|bluefield|quickassist|crypto|fpga",
    re.IGNORECASE,
)
_MOST = 64


def gpus_of(extra: Mapping[str, str]) -> int | None:
    """Whole GPUs, and shares that the flavour calls GPUs. None where it asks for some and does not say how many: by a
    device profile, of which only Cyborg knows what is in it, or by a number that is none.

    An alias that nobody would take for anything else counts as a GPU unless the flavour names another that is one.
    """
    found: int = 0
    for key, told in extra.items():
        named = _RESOURCES.fullmatch(key)
        if named is not None and (named["name"] in _PLAIN or _is_custom_gpu(named["name"])):
            count = _number(told)
            if count is None:
                return None
            found += count
    aliases = list(_aliases(extra.get(_ALIASES, "")))
    clear = [count for name, count in aliases if _MODEL.search(name)]
    counts = clear or [count for name, count in aliases if not found and not _ELSE.search(name)]
    if None in counts or (extra.get(_PROFILE) and not counts and not found):
        return None
    return found + sum(filter(None, counts))


def _is_custom_gpu(name: str) -> bool:
    """``CUSTOM_GPU_H100``, ``CUSTOM_NVIDIA_A100``, ``CUSTOM_PCI_10DE_2330``, ``CUSTOM_BAREMETAL_GPU``."""
    return name.startswith("CUSTOM_") and _MODEL.search(name.removeprefix("CUSTOM_")) is not None


def _aliases(text: str) -> Iterator[tuple[str, int | None]]:
    """``h100:2,ib:1`` -> (h100, 2), (ib, 1)."""
    for each in filter(None, text.split(",")):
        name, _, count = each.strip().rpartition(":")
        yield name, _number(count)


def _number(text: str) -> int | None:
    text = text.strip()
    return min(int(text), _MOST) if text.isascii() and text.isdecimal() and len(text) <= 9 else None
