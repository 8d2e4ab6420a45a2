"""The bindings as they are, for tests of what they do: run in a child, like the adapter's own."""

from __future__ import annotations

import htcondor2


class Raw:
    """One schedd of one pool, asked directly."""

    def __init__(self, collector: str) -> None:
        self._schedd = htcondor2.Schedd(
            htcondor2.Collector(collector).query(htcondor2.AdType.Schedd)[0]
        )

    def group(self, constraint: str, attributes: list[str]) -> int:
        """How many jobs the groups have that a constraint lets through."""
        ads = self._schedd.query(constraint, projection=attributes, opts=htcondor2.QueryOpt.GroupBy)
        return sum(int(ad["JobCount"]) for ad in ads)
