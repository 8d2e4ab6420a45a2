"""Reports of the ledger: GPU-hours by VO, site or type with what they cost, against pledges and budgets.

Amounts are GPU-milliseconds, as in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from provisioner.accounting.entries import SECONDS_A_DAY, Account, Outcome
from provisioner.model import AccountingPolicy, DroneType, GpuBudget, TypeKey
from provisioner.values import define, frozen

GPU_HOUR = 3_600_000
RATE_DAYS = 7
"""Days before the newest one of which the rate of a budget is the mean."""
NO_VALUE = "none"
_OF_RUNS = frozenset(outcome.value for outcome in Outcome)
_DONE = frozenset({Outcome.COMPLETED.value, Outcome.FAILED.value})


class LedgerSum(NamedTuple):
    """Sum over days of the ledger; its fields are columns of the store's queries."""

    site: str
    type: str
    model: str
    sharing: str
    accounting_group: str
    vo: str
    account: str
    runs: int
    held: int
    used: int
    used_of: int
    energy_j: int
    energy_of: int
    cpu_s: int

    @property
    def is_of_runs(self) -> bool:
        return self.account in _OF_RUNS

    @property
    def key(self) -> TypeKey:
        return TypeKey(f"{self.site}/{self.type}")


REPORT_GROUPINGS: Mapping[str, Callable[[LedgerSum], str]] = {
    "vo": lambda each: each.vo,
    "group": lambda each: each.accounting_group,
    "site": lambda each: each.site,
    "type": lambda each: each.key,
    "model": lambda each: each.model,
    "sharing": lambda each: each.sharing,
    "outcome": lambda each: each.account,
}


@define
class ReportRow:
    """Runs of one VO, site, ... in a period."""

    names: tuple[str, ...]
    runs: int = 0
    held: int = 0
    lost: int = 0
    """Part of ``held`` of runs that did not end by themselves."""
    used: int = 0
    used_of: int = 0
    """Part of ``held`` whose use was measured."""
    energy_j: int = 0
    """Measured."""
    modelled_j: float = 0.0
    """Energy of other runs, by the power of their types."""
    unknown: int = 0
    """Part of ``held`` whose energy is neither measured nor modelled."""
    cpu_s: int = 0
    weighted: float | None = 0.0
    """``held`` times the benchmark; None: a type has none."""
    cost: float = 0.0
    pledge_h: float | None = None

    @property
    def name(self) -> str:
        return ", ".join(each or NO_VALUE for each in self.names)

    @property
    def mean(self) -> float | None:
        return self.used / self.used_of if self.used_of else None

    @property
    def delivered(self) -> float | None:
        """Return the part of the pledge that jobs held; None without a pledge."""
        return self.held / GPU_HOUR / self.pledge_h if self.pledge_h else None

    def add(self, each: LedgerSum, kind: DroneType | None, weight: str) -> None:
        self.runs += each.runs
        self.held += each.held
        self.lost += 0 if each.account in _DONE else each.held
        self.used += each.used
        self.used_of += each.used_of
        self.energy_j += each.energy_j
        self.cpu_s += each.cpu_s
        unmeasured = each.held - each.energy_of
        if kind is not None and kind.power_w:
            self.modelled_j += unmeasured / 1000 * kind.power_w
        else:
            self.unknown += unmeasured
        self.cost += each.held / GPU_HOUR * (kind.price if kind is not None else 1.0)
        factor = weight_of(kind, weight)
        if factor is None or self.weighted is None:
            self.weighted = None
        else:
            self.weighted += each.held / GPU_HOUR * factor


def weight_of(kind: DroneType | None, weight: str) -> float | None:
    """Return the benchmark of a GPU of a type, 1 without a benchmark to weight by; None: it has no such result."""
    if not weight:
        return 1.0
    results = kind.benchmark if kind is not None else ()
    return next((each.value for each in results if (each.name, each.per) == (weight, "gpu")), None)


@frozen
class BudgetUse:
    """Use of a budget."""

    budget: GpuBudget
    used_h: float
    a_day_h: float
    """Mean of the last days."""
    left_days: float | None
    """Until nothing is left at this rate; None: nothing is used."""

    @property
    def left_h(self) -> float:
        return self.budget.gpu_hours - self.used_h


@frozen
class AccountingReport:
    """Rows of a report, most GPU-hours first, and the balance of all drones: ``life`` is the sum of the others."""

    since: float
    until: float
    rows: Sequence[ReportRow] = ()
    life: int = 0
    jobs: int = 0
    boot: int = 0
    draining: int = 0
    idle: int = 0
    service: int = 0
    is_final: bool = False
    """All days of the period have settled."""
    budgets: Sequence[BudgetUse] = ()


def accounting_report(
    sums: Iterable[LedgerSum],
    by: Sequence[str],
    types: Iterable[DroneType],
    policy: AccountingPolicy,
    days: tuple[int, int],
    open_day: int,
    budgets: Iterable[BudgetUse] = (),
) -> AccountingReport:
    """Return the report of the days from the first one up to the second one."""
    kinds = {kind.key: kind for kind in types}
    rows: dict[tuple[str, ...], ReportRow] = {}
    if tuple(by) == ("vo",):
        for vo, pledge_h in policy.pledges.items():
            rows[vo,] = ReportRow((vo,), pledge_h=pledge_h)
    accounts = dict.fromkeys((*Account, "jobs"), 0)
    for each in sums:
        if not each.is_of_runs:
            accounts[each.account] += each.held
            continue
        accounts["jobs"] += each.held
        names = tuple(REPORT_GROUPINGS[name](each) for name in by)
        row = rows.get(names) or rows.setdefault(names, ReportRow(names))
        row.add(each, kinds.get(each.key), policy.weight)
    first, end = days
    return AccountingReport(
        first * SECONDS_A_DAY,
        end * SECONDS_A_DAY,
        sorted(rows.values(), key=lambda row: (-row.held, row.name)),
        accounts["life"],
        accounts["jobs"],
        accounts["boot"],
        accounts["draining"],
        accounts["idle"],
        accounts["service"],
        end <= open_day,
        [*budgets],
    )


def budget_use(budget: GpuBudget, used: int, lately: int) -> BudgetUse:
    """Return the use of a budget. ``lately``: what drones had in the last :data:`RATE_DAYS`."""
    used_h = used / GPU_HOUR
    a_day_h = lately / GPU_HOUR / RATE_DAYS
    left_h = max(0.0, budget.gpu_hours - used_h)
    return BudgetUse(budget, used_h, a_day_h, left_h / a_day_h if a_day_h else None)
