"""Names of GPU models: one form to compare them, and the name that a driver has for them.

People, drivers and sites write ``H100-80GB-HBM3``, ``NVIDIA H100 80GB HBM3`` and
``nvidia_h100_80gb_hbm3`` for one GPU.
"""

from __future__ import annotations

import re
from functools import cache

_VENDOR = re.compile(r"^(?:nvidia|amd|intel(?:\(r\))?)(?=[ _-])", re.IGNORECASE)
_SERIES = re.compile(
    r"^(?:tesla|geforce|grid|quadro(?![ _-]rtx[ _-][456]000))(?=[ _-])", re.IGNORECASE
)
"""Words in front of a model that people leave out. (An RTX 6000 of another series is another GPU.)"""
_MIG = re.compile(r"[ _-]+mig[ _-]+(?=\d+[cg]\.)", re.IGNORECASE)
_SEPARATORS = re.compile(r"[ _-]+")
_BRANDS = re.compile(r"(?:tesla|quadro|grid)\b", re.IGNORECASE)
"""Brands before which NVIDIA's driver does not write its own name."""
_DRIVER_NAMES = """
B200, GB10, GB200, GB300, H20, H100 80GB HBM3, H100 80GB HBM2e, H100 PCIe, H100 NVL, H200, H200 NVL, H800 PCIe,
GH200 120GB, GH200 480GB, GH200 144G HBM3e, L4, L20, L40, L40S, A2, A10, A10G, A16, A30, A40,
A100 80GB PCIe, A100-SXM4-40GB, A100-SXM4-80GB, A100-PCIE-40GB, A100-SXM-64GB, A800 80GB PCIe, A800 40GB Active,
A800-SXM4-80GB, RTX A2000, RTX A2000 12GB, RTX A4000, RTX A4500, RTX A5000, RTX A5500, RTX A6000,
RTX 2000 Ada Generation, RTX 4000 Ada Generation, RTX 4000 SFF Ada Generation, RTX 4500 Ada Generation,
RTX 5000 Ada Generation, RTX 5880 Ada Generation, RTX 6000 Ada Generation, RTX PRO 4000 Blackwell,
RTX PRO 4500 Blackwell, RTX PRO 5000 Blackwell, RTX PRO 6000 Blackwell Server Edition,
RTX PRO 6000 Blackwell Workstation Edition, RTX PRO 6000 Blackwell Max-Q Workstation Edition,
TITAN RTX, TITAN V, TITAN Xp, TITAN X (Pascal), GeForce GTX 1070, GeForce GTX 1070 Ti, GeForce GTX 1080,
GeForce GTX 1080 Ti, GeForce GTX TITAN X, GeForce RTX 2070, GeForce RTX 2070 SUPER, GeForce RTX 2080,
GeForce RTX 2080 SUPER, GeForce RTX 2080 Ti, GeForce RTX 3060, GeForce RTX 3060 Ti, GeForce RTX 3070,
GeForce RTX 3070 Ti, GeForce RTX 3080, GeForce RTX 3080 Ti, GeForce RTX 3090, GeForce RTX 3090 Ti,
GeForce RTX 4070, GeForce RTX 4070 Ti, GeForce RTX 4080, GeForce RTX 4080 SUPER, GeForce RTX 4090,
GeForce RTX 4090 D, GeForce RTX 5070, GeForce RTX 5070 Ti, GeForce RTX 5080, GeForce RTX 5090, GeForce RTX 5090 D,
Quadro RTX 4000, Quadro RTX 5000, Quadro RTX 6000, Quadro RTX 8000, Quadro GP100, Quadro GV100, Quadro P4000,
Quadro P5000, Quadro P6000, Tesla T4, Tesla T10, Tesla V100, Tesla V100S, Tesla V100-SXM2-16GB,
Tesla V100-SXM2-32GB, Tesla V100-SXM3-32GB, Tesla V100-PCIE-16GB, Tesla V100-PCIE-32GB, Tesla V100S-PCIE-32GB,
Tesla V100-FHHL-16GB, Tesla P100, Tesla P100-SXM2-16GB, Tesla P100-PCIE-12GB, Tesla P100-PCIE-16GB, Tesla P4,
Tesla P40, Tesla M4, Tesla M10, Tesla M40, Tesla M40 24GB, Tesla M60, Tesla K20m, Tesla K20Xm, Tesla K40c,
Tesla K40m, Tesla K80
"""


def canonical(model: str) -> str:
    """Return a model in the form by which models are compared: small letters, single dashes, no vendor in front.

    Nor is there the name of a series: ``T4`` and ``Tesla T4`` are one model.
    """
    return _SEPARATORS.sub("-", _SERIES.sub("", _without_vendor(model)).strip(" _-")).lower()


def _without_vendor(model: str) -> str:
    return _VENDOR.sub("", model.strip(), count=1).strip(" _-")


@cache
def _known() -> dict[str, str]:
    names = " ".join(_DRIVER_NAMES.split()).split(", ")
    short = {canonical(name).removeprefix("quadro-"): name for name in names}
    return short | {canonical(name): name for name in names}


def driver_name(model: str, vendor: str) -> str:
    """Return the name that the driver, and so HTCondor's discovery, has for a model: ``NVIDIA H100 80GB HBM3``.

    Dashes in the place of spaces are put right for common models only, as is a series that is left
    out. The name of a MIG instance is that of its GPU and the profile.
    """
    gpu, *profile = _MIG.split(model, maxsplit=1)
    name = " MIG ".join([_known().get(canonical(gpu), gpu), *profile])
    if not name or vendor != "nvidia" or _BRANDS.match(name):
        return name
    return f"NVIDIA {_without_vendor(name)}"
