"""Job ads as `condor_submit` writes them, grouped as a schedd does."""

from __future__ import annotations

from collections.abc import Mapping

import classad2
import htcondor2  # noqa: F401 - makes ClassAds know HTCondor's own functions

from adapters.htcondor.overlay.affiliation import DEFAULT_VO, Affiliation

AFFILIATION = Affiliation("AcctGroup", DEFAULT_VO.format(group="AcctGroup"))

REQUIREMENTS = (
    '(TARGET.Arch == "X86_64") && (TARGET.OpSys == "LINUX") && (TARGET.Disk >= RequestDisk)'
    " && (TARGET.Memory >= RequestMemory) && (countMatches(MY.RequireGPUs,TARGET.AvailableGPUs) >= RequestGPUs)"
    " && ((TARGET.FileSystemDomain == MY.FileSystemDomain) || (TARGET.HasFileTransfer))"
)


def exprs(text: str) -> dict[str, str]:
    """Attributes with their expressions, from ``A = 1; B = "x"``."""
    parts = (part.partition(" = ") for part in " ".join(text.split()).split("; "))
    return {name: source for name, _, source in parts}


BASE = exprs(
    """
    JobStatus = 1; JobCount = 1; JobIds = "1.0"; JobUniverse = 5; JobPrio = 0; Owner = "alice";
    FileSystemDomain = "submit.example.org"; RequestGPUs = 1; RequestCpus = 1; RequestMemory = 128;
    RequestDisk = DiskUsage; DiskUsage = 1024
    """
)
BASE["Requirements"] = REQUIREMENTS.replace(
    "(countMatches(MY.RequireGPUs,TARGET.AvailableGPUs)", "(TARGET.GPUs"
)


def job(**attributes: str) -> classad2.ClassAd:
    """A group ad; attributes are expressions. ``RequireGPUs`` brings its clause in Requirements along."""
    both = {**BASE, **attributes}
    if "RequireGPUs" in attributes and "Requirements" not in attributes:
        both["Requirements"] = REQUIREMENTS
    return ad_of(both)


def ad_of(*attributes: Mapping[str, str]) -> classad2.ClassAd:
    """An ad with attributes from their expressions; later ones replace earlier ones."""
    ad = classad2.ClassAd()
    for each in attributes:
        for name, text in each.items():
            ad[name] = classad2.ExprTree(text)
    return ad
