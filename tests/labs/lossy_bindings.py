"""The bindings' process of an HTCondor site, which dies when the schedd has taken its jobs and before it tells."""

from __future__ import annotations

import os
from collections.abc import Sequence

from adapters.htcondor.site.client import BindingsWorker


class ForgetfulSide(BindingsWorker):
    def submit(self, description: str, drone_ids: Sequence[str], spool: bool) -> int:
        super().submit(description, drone_ids, spool)
        os._exit(1)
