"""Sites of other kinds (CloudStack, Kubernetes, Moab): what is no secret is kept as remarks for the adapter to come."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provisioner.migrate.executors import put_executor
from provisioner.migrate.htcondor import COMMON
from provisioner.migrate.section import Section
from provisioner.migrate.shapes import MachineType, moab_walltime_s
from provisioner.migrate.told import Told
from provisioner.migrate.written import Block

_SECRET = re.compile(r"pass|secret|token|api_?key|totp|credential|private", re.IGNORECASE)
_LOGIN_IN_URL = re.compile(r"//[^/@\s]*@")


class OtherSite:
    """A site whose options nobody can write yet."""

    def __init__(self, section: Section, ours: str, adapter: str) -> None:
        self.section, self.notes, self.ours, self.adapter = section, section.notes, f"{ours}: options", adapter
        self.remarks: list[str] = []

    def machine(self, machine: MachineType, given: Section, ours: str) -> None:
        told = given.take("Walltime")
        seconds = moab_walltime_s(told.text) if told is not None and told.text else None
        if told is not None and seconds is not None:
            machine.walltime_s = seconds
            self.notes.converted(told.line, given.name("Walltime"), f"{ours}: types.{machine.ours}.walltime")
        elif told is not None:
            self.notes.needed(told.line, given.name("Walltime"), f"{ours}: types.{machine.ours}", "write `walltime`")
        self._keep(given, f"types.{machine.ours}.")

    def options(self) -> Block:
        self.section.drop(COMMON)
        block = Block()
        if self.section.peek("executor") is not None:
            put_executor(self.section, block, self.ours)
        self._keep(self.section, "")
        for remark in self.remarks:
            block.remark(remark)
        return block

    def _keep(self, given: Section, path: str) -> None:
        for key, told in given.left():
            if _SECRET.search(key):
                self.remarks.append(f"{path}{key}: (a secret: not copied)")
                self.notes.dropped(told.line, given.name(key), "a secret: not copied; keep it in a file of its own")
                continue
            self.remarks += [_LOGIN_IN_URL.sub("//", line) for line in _lines(f"{path}{key}", told)]
            self.notes.dropped(told.line, given.name(key), "kept as a remark under `options`, for an adapter to come")


def _lines(path: str, told: Told) -> Iterator[str]:
    """Each plain value below ``told`` with its path; secrets without their value."""
    if _SECRET.search(path.rpartition(".")[2]):
        yield f"{path}: (a secret: not copied)"
    elif isinstance(told.value, dict):
        for key, below in told.value.items():
            yield from _lines(f"{path}.{key}", below)
    elif isinstance(told.value, list):
        for n, below in enumerate(told.value):
            yield from _lines(f"{path}[{n}]", below)
    else:
        yield f"{path}: {told.value if told.value is not None else ''}{' ' + told.tag if told.tag else ''}".strip()
