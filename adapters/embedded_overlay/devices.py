"""The GPUs of one drone, shared out to its jobs in whole milli-GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WHOLE_GPU = 1000


class Devices:
    """Free milli-GPU by device. A drone's own share may leave its last device less than whole."""

    def __init__(self, names: Sequence[str], gpu_milli: int) -> None:
        whole, rest = divmod(gpu_milli, _WHOLE_GPU)
        shares = [_WHOLE_GPU] * whole + [rest] * bool(rest)
        if len(names) < len(shares):
            raise ValueError(f"{len(shares)} GPUs were promised, {len(names)} are visible")
        self._free = dict(zip(names, shares, strict=False))

    @property
    def free_milli(self) -> int:
        return sum(self._free.values())

    @property
    def untouched(self) -> int:
        return sum(free == _WHOLE_GPU for free in self._free.values())

    @property
    def largest_share(self) -> int:
        return max(self._free.values(), default=0)

    def take(self, gpu_milli: int) -> dict[str, int]:
        """Whole devices, or a share of the fullest one that has it. ValueError if there is no room."""
        if gpu_milli < _WHOLE_GPU:
            enough = [name for name, free in self._free.items() if free >= gpu_milli > 0]
            chosen = {min(enough, key=self._free.__getitem__): gpu_milli} if enough else {}
        else:
            whole = [name for name, free in self._free.items() if free == _WHOLE_GPU]
            chosen = dict.fromkeys(whole[: gpu_milli // _WHOLE_GPU], _WHOLE_GPU)
        if sum(chosen.values()) != gpu_milli:
            raise ValueError(f"no room for {gpu_milli} milli-GPU in {self._free}")
        for name, milli in chosen.items():
            self._free[name] -= milli
        return chosen

    def give_back(self, taken: Mapping[str, int]) -> None:
        for name, milli in taken.items():
            self._free[name] += milli
