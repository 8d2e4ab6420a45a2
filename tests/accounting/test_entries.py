"""Entries of a drone: what each moment of its life is booked as."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from provisioner.accounting.entries import (
    SECONDS_A_DAY,
    DroneDay,
    DroneLife,
    Outcome,
    Run,
    RunDay,
    entries,
)

HOUR = 3600
LIFE = DroneLife(1000, began=0, joined=600, end=4 * HOUR)


def run(begun: int, ended: int, milli: int = 1000, job: str = "1.0", **more: int) -> Run:
    return Run(job, begun, ended, milli, **more)  # type: ignore[arg-type]


def test_a_life_is_boot_jobs_draining_and_idle() -> None:
    life = replace(LIFE, leaving=((3 * HOUR, 4 * HOUR),))
    made = entries(life, [run(HOUR, 2 * HOUR)], 0)
    assert dict(made.days) == {
        0: DroneDay(
            life=4 * HOUR * 1000,
            boot=600 * 1000,
            jobs=HOUR * 1000,
            draining=HOUR * 1000,
            idle=(2 * HOUR - 600) * 1000,
        )
    }


def test_the_ready_time_of_a_server_is_an_account_of_its_own() -> None:
    life = replace(LIFE, serves=True, leaving=((3 * HOUR, 4 * HOUR),))
    (day,) = entries(life, [], 0).days.values()
    assert (day.boot, day.service, day.draining, day.idle) == (
        600 * 1000,
        (3 * HOUR - 600) * 1000,
        HOUR * 1000,
        0,
    )
    assert day.balances


def test_a_quarter_counts_a_quarter_and_the_rest_is_idle() -> None:
    made = entries(LIFE, [run(HOUR, 2 * HOUR, 250), run(HOUR, 2 * HOUR, 250, "2.0")], 0)
    assert made.days[0].jobs == HOUR * 500
    assert {key[1]: each.held for key, each in made.runs.items()} == {
        "1.0": HOUR * 250,
        "2.0": HOUR * 250,
    }


def test_runs_that_exceed_the_drone_are_cut_in_the_order_of_their_begin() -> None:
    """Clocks differ: the next run seems to begin before the last one has ended."""
    made = entries(LIFE, [run(HOUR, 2 * HOUR), run(2 * HOUR - 10, 3 * HOUR, job="2.0")], 0)
    assert [each.held for _, each in sorted(made.runs.items())] == [HOUR * 1000, HOUR * 1000]
    assert made.days[0].balances


def test_a_run_over_midnight_is_split_and_what_it_used_with_it() -> None:
    life = replace(LIFE, end=2 * SECONDS_A_DAY)
    over = run(SECONDS_A_DAY - HOUR, SECONDS_A_DAY + 2 * HOUR, used=1000, energy_j=100, cpu_s=10)
    made = entries(life, [over], 0)
    first, second = (made.runs[day, "1.0", over.ended] for day in (0, 1))
    assert (first.held, second.held) == (HOUR * 1000, 2 * HOUR * 1000)
    assert (first.used, second.used) == (333, 667)
    assert (first.energy_j, second.energy_j) == (33, 67)
    assert (first.runs, second.runs) == (0, 1)


def test_a_run_that_arrives_after_its_first_day_has_settled_is_booked_against_idle() -> None:
    long = run(SECONDS_A_DAY // 2, SECONDS_A_DAY + HOUR, used=5000)
    life = DroneLife(1000, 0, 0, 2 * SECONDS_A_DAY, settled_s=SECONDS_A_DAY)
    made = entries(life, [long], 1)
    part = made.runs[1, "1.0", long.ended]
    assert part == RunDay(
        runs=1,
        seconds=SECONDS_A_DAY // 2 + HOUR,
        held=(SECONDS_A_DAY // 2 + HOUR) * 1000,
        late=SECONDS_A_DAY // 2 * 1000,
        used=5000,
    )
    assert made.days[1].life == SECONDS_A_DAY * 1000 and made.days[1].balances
    settled = RunDay(0, SECONDS_A_DAY // 2, SECONDS_A_DAY // 2 * 1000)
    again = entries(life, [replace(long, settled=settled)], 1)
    assert again.runs[1, "1.0", long.ended].late == 0, "it was booked then"


def test_a_run_that_took_no_time_holds_nothing() -> None:
    made = entries(LIFE, [run(HOUR, HOUR, cpu_s=1)], 0)
    assert made.runs[0, "1.0", HOUR] == RunDay(runs=1, cpu_s=1)
    assert made.days[0].jobs == 0


def test_a_run_outside_the_life_of_its_drone_holds_nothing_and_keeps_what_it_used() -> None:
    outside = run(5 * HOUR, 6 * HOUR, cpu_s=30)
    made = entries(LIFE, [outside], 0)
    assert made.runs[0, "1.0", outside.ended] == RunDay(runs=1, cpu_s=30)
    assert made.days[0].jobs == 0


def test_a_clock_that_is_set_back_after_days_have_settled_costs_no_balance() -> None:
    life = DroneLife(1000, 0, 0, SECONDS_A_DAY, settled_s=SECONDS_A_DAY + HOUR)
    made = entries(life, [], 1)
    assert dict(made.days) == {1: DroneDay(life=-HOUR * 1000, idle=-HOUR * 1000)}


SECONDS = st.integers(0, 5 * SECONDS_A_DAY)


@st.composite
def stories(draw: st.DrawFn) -> tuple[DroneLife, list[Run]]:
    began, joined, end, *leaving = sorted(draw(st.lists(SECONDS, min_size=5, max_size=5)))
    life = DroneLife(
        draw(st.sampled_from([333, 1000, 4000])),
        began,
        joined,
        max(began, draw(SECONDS)),
        [(end, leaving[0]), (leaving[0], leaving[1])],
    )
    runs = []
    for n in range(draw(st.integers(0, 6))):
        begun, ended = sorted((draw(SECONDS), draw(SECONDS)))
        milli = draw(st.sampled_from([250, 333, 1000]))
        runs.append(Run(f"{n}.0", begun, ended, milli, Outcome.COMPLETED, 7777, 991, 55))
    return life, runs


@given(stories(), st.integers(0, 3))
def test_days_balance_and_amounts_are_whole_whenever_days_settle(
    story: tuple[DroneLife, list[Run]], open_day: int
) -> None:
    """A drone is booked while it lives, days settle, and it is booked again at its end with more runs."""
    life, runs = story
    horizon = open_day * SECONDS_A_DAY
    early = replace(life, end=max(life.began, min(life.end, horizon)))
    first = entries(early, [each for each in runs if each.ended <= early.end], 0)
    settled_s = sum(each.life for day, each in first.days.items() if day < open_day) // life.milli
    known = dict[tuple[str, int], RunDay]()
    for (day, job, ended), part in first.runs.items():
        if day < open_day:
            total = known.setdefault((job, ended), RunDay(used=0, energy_j=0, cpu_s=0))
            for name in ("runs", "seconds", "held", "used", "energy_j", "cpu_s"):
                setattr(total, name, getattr(total, name) + getattr(part, name))
    later = [replace(each, settled=known.get((each.job_id, each.ended))) for each in runs]
    last = entries(replace(life, settled_s=settled_s), later, open_day)
    booked = [each for day, each in first.days.items() if day < open_day] + [*last.days.values()]
    assert all(each.balances for each in booked)
    assert sum(each.life for each in booked) == life.milli * (life.end - life.began)
    parts = [each for key, each in first.runs.items() if key[0] < open_day] + [*last.runs.values()]
    assert sum(each.held for each in parts) == sum(each.jobs for each in booked)
    assert all(day >= open_day for day in last.days)
    for each in runs:
        its = [part for key, part in last.runs.items() if key[1:] == (each.job_id, each.ended)]
        its += [found] if (found := known.get((each.job_id, each.ended))) else []
        assert sum(part.used or 0 for part in its) == 7777
        assert sum(part.energy_j or 0 for part in its) == 991
        assert sum(part.runs for part in its) == 1
        assert sum(part.held for part in its) <= each.milli * (each.ended - each.begun)
