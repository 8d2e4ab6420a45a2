"""``scontrol show``: partitions, reservations, what nodes keep, and the running configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import dropwhile

from adapters.slurm.cluster import Partition, Reservation
from adapters.slurm.hostlist import expand
from adapters.slurm.printed import mebibytes, moment, number, span, word, words

_PAIR = re.compile(r"(\w+)=(\S*)")
_SETTING = re.compile(r"(\w+) +=(?: (.*))?")
_KEPT_CORES = re.compile(r"^NodeName=(\S+) .*? RestrictedCoresPerGPU=([0-9]{1,9})\([0-9]", re.MULTILINE)
_NONE_RESERVED = "No reservations in the system"


def partitions(text: str) -> list[Partition]:
    """The answer to ``show partition -o``. ValueError if it is not whole; every cluster has one."""
    found = [
        Partition(
            name=pairs["PartitionName"],
            up=pairs["State"] == "UP",
            nodes=expand(pairs["Nodes"]),
            max_s=span(pairs["MaxTime"]),
            tier=number(pairs["PriorityTier"]),
            grace_s=float(number(pairs["GraceTime"])),
            preempt_mode=word(pairs["PreemptMode"]),
            max_memory_per_cpu_mib=mebibytes(pairs.get("MaxMemPerCPU", "")),
            max_memory_per_node_mib=mebibytes(pairs.get("MaxMemPerNode", "")),
            max_cpus_per_node=number(pairs["MaxCPUsPerNode"]),
            default=pairs["Default"] == "YES",
        )
        for pairs in _records(text, "PartitionName")
    ]
    if not found:
        raise ValueError("it tells of no partition")
    return found


def reservations(text: str) -> list[Reservation]:
    """The answer to ``show reservation -o``, none said in words. ValueError if it is not whole."""
    if text.rstrip().endswith(_NONE_RESERVED) and "ReservationName=" not in text:
        return []
    found = [
        Reservation(
            name=pairs["ReservationName"],
            starts_at=moment(pairs["StartTime"]),
            ends_at=moment(pairs["EndTime"]),
            nodes=expand(pairs["Nodes"]),
            flags=frozenset(words(pairs["Flags"].upper())),
            users=words(pairs["Users"]),
            accounts=words(pairs["Accounts"]),
        )
        for pairs in _records(text, "ReservationName")
    ]
    if not found:
        raise ValueError("it tells neither of reservations nor that there are none")
    return found


def kept_cores(text: str) -> Mapping[str, int]:
    """``RestrictedCoresPerGPU`` of the nodes on which it is in force, from ``show node -o``: ``4(0-7,38-45)`` names the
    cores that are kept; with ``4((null))`` it is written down and keeps nothing."""
    return {node: int(cores) for node, cores in _KEPT_CORES.findall(text)}


def _records(text: str, first: str) -> Iterator[Mapping[str, str]]:
    """Yield each line's pairs; of a name that comes twice the first, as free text stands at the end. Lines above the
    first record are a greeting of the login node."""
    if text and not text.endswith("\n"):
        raise ValueError("its last line is cut")
    lines = filter(None, map(str.strip, text.split("\n")))
    for line in dropwhile(lambda each: not each.startswith(f"{first}="), lines):
        pairs: dict[str, str] = {}
        for name, value in _PAIR.findall(line):
            pairs.setdefault(name, value)
        if not line.startswith(f"{first}="):
            raise ValueError(f"a line of it does not begin with {first}")
        yield _Told(pairs)


class _Told(dict[str, str]):
    def __missing__(self, name: str) -> str:
        raise ValueError(f"it does not tell {name}")


def configuration(text: str) -> Mapping[str, str]:
    """The answer to ``show config``. ValueError if it is not whole."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if setting := _SETTING.fullmatch(line.rstrip()):
            found.setdefault(setting[1], (setting[2] or "").strip())
    if "SLURM_VERSION" not in found:
        raise ValueError("it tells no version")
    return found
