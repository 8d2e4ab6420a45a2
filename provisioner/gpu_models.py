"""Names of GPU models: one form to compare them, and the name that a driver has for them.

People, drivers and sites write ``H100-80GB-HBM3``, ``NVIDIA H100 80GB HBM3`` and
``nvidia_h100_80gb_hbm3`` for one GPU.
"""

from __future__ import annotations

import re
from functools import cache

_VENDOR = re.compile(r"^(?:nvidia|amd|intel(?:\(r\))?)(?=[ _-])", re.IGNORECASE)
_SEPARATORS = re.compile(r"[ _-]+")
_BRANDS = re.compile(r"(?:tesla|quadro|grid)\b", re.IGNORECASE)
"""Brands before which NVIDIA's driver does not write its own name."""
_DRIVER_NAMES = """
H100 80GB HBM3, H100 PCIe, H100 NVL, H200, H200 NVL, H800 PCIe, H20, GH200 120GB, GH200 480GB, GH200 144G HBM3e,
A100 80GB PCIe, A800 80GB PCIe, B200, GB200, GB300, L4, L40, L40S, A2, A10, A16, A30, A40,
RTX A4000, RTX A5000, RTX A6000, TITAN RTX,
TITAN V, RTX 6000 Ada Generation, RTX PRO 6000 Blackwell Server Edition, RTX PRO 6000 Blackwell Workstation Edition,
GeForce RTX 2080 Ti, GeForce RTX 3090, GeForce RTX 4090, GeForce RTX 5090, GeForce GTX 1080 Ti, A100-SXM4-40GB,
A100-SXM4-80GB, A100-PCIE-40GB, A100-SXM-64GB, A800-SXM4-80GB, Tesla T4, Tesla V100-SXM2-16GB, Tesla V100-SXM2-32GB,
Tesla V100-SXM3-32GB, Tesla V100-PCIE-16GB, Tesla V100-PCIE-32GB, Tesla V100S-PCIE-32GB, Tesla P100-PCIE-16GB, Tesla P40
"""


def canonical(model: str) -> str:
    """Return a model in the form by which models are compared: no vendor in front, small letters, single dashes."""
    return _SEPARATORS.sub("-", _without_vendor(model)).lower()


def _without_vendor(model: str) -> str:
    return _VENDOR.sub("", model.strip(), count=1).strip(" _-")


@cache
def _known() -> dict[str, str]:
    return {canonical(name): name for name in " ".join(_DRIVER_NAMES.split()).split(", ")}


def driver_name(model: str, vendor: str) -> str:
    """Return the name that the driver, and so HTCondor's discovery, has for a model: ``NVIDIA H100 80GB HBM3``.

    Dashes in the place of spaces are put right for common models only.
    """
    name = _known().get(canonical(model), model)
    if not name or vendor != "nvidia" or _BRANDS.match(name):
        return name
    return f"NVIDIA {_without_vendor(name)}"
