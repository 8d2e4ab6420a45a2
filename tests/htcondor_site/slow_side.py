"""What works in the children of a cluster by bindings, for a test: orders and the owner's schedds take for ever."""

from __future__ import annotations

import os
import time

import classad2

from adapters.htcondor.classads import Ad
from adapters.htcondor.site.nodes import SlotResources
from adapters.htcondor.site.owner import OwnerJobQueue


class SlowSide:
    def __init__(self, collector: str, schedd: str) -> None:
        pass

    def ads(self, kind: str, constraint: str, projection: tuple[str, ...]) -> list[Ad]:
        return [classad2.ClassAd({"Pid": os.getpid()})]

    def submit(self, *args: object) -> int:
        time.sleep(3600)
        return 1

    def owner_queue(self, schedd: str, constraint: str, names: tuple[str, ...]) -> OwnerJobQueue:
        if schedd == "silent":
            time.sleep(3600)
        return OwnerJobQueue(running=((schedd, SlotResources()),))
