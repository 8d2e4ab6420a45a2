"""The GPUs of one drone, shared out to its jobs in whole milli-GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WHOLE_GPU = 1000


class Devices:
    """Free milli-GPU by device. A drone's own share may leave its last device less than whole.

    Offered in ``shares``, a device is given out in whole ones: several to a job only if they ``join``, and none to a
    job that wants all of it.
    """

    def __init__(self, names: Sequence[str], gpu_milli: int, shares: int = 1, joins: bool = True) -> None:
        self._shared, self._joins = shares > 1, joins
        self._unit = _WHOLE_GPU // shares if self._shared else 1
        whole, rest = divmod(gpu_milli, _WHOLE_GPU)
        sizes = [_WHOLE_GPU] * whole + [rest] * bool(rest)
        if len(names) < len(sizes):
            raise ValueError(f"{len(sizes)} GPUs were promised, {len(names)} are visible")
        self._free = dict(zip(names, sizes, strict=False))

    @property
    def free_milli(self) -> int:
        return sum(self._free.values())

    @property
    def untouched(self) -> int:
        return 0 if self._shared else sum(free == _WHOLE_GPU for free in self._free.values())

    @property
    def largest_share(self) -> int:
        most = max(self._free.values(), default=0) // self._unit * self._unit
        return most if self._joins else min(most, self._unit)

    def take(self, gpu_milli: int) -> dict[str, int]:
        """Whole devices, or a part of one. ValueError if there is no room."""
        chosen = self._whole(gpu_milli // _WHOLE_GPU) if gpu_milli >= _WHOLE_GPU else self._part(gpu_milli)
        if gpu_milli and not chosen:
            raise ValueError(f"no room for {gpu_milli} milli-GPU in {self._free}")
        for name, milli in chosen.items():
            self._free[name] -= milli
        return chosen

    def _whole(self, count: int) -> dict[str, int]:
        if count > self.untouched:
            return {}
        names = [name for name, free in self._free.items() if free == _WHOLE_GPU]
        return dict.fromkeys(names[:count], _WHOLE_GPU)

    def _part(self, gpu_milli: int) -> dict[str, int]:
        """Of the fullest device that has it; shares of the emptiest, for jobs on one device slow each other down."""
        part = -(-gpu_milli // self._unit) * self._unit
        if not 0 < part <= self.largest_share:
            return {}
        enough = [name for name, free in self._free.items() if free >= part]
        best = max if self._shared else min
        return {best(enough, key=self._free.__getitem__): part}

    def give_back(self, taken: Mapping[str, int]) -> None:
        for name, milli in taken.items():
            self._free[name] += milli
