"""How often one amount goes into another, and what blocking keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from provisioner.planner.matching import NO_RESOURCES, Resources, count_fits

KEPT = Resources(0, 8, 20480)


def test_the_binding_dimension_decides() -> None:
    assert count_fits(Resources(1000, 8, 20480), Resources(8000, 192, 1048576)) == 8
    assert count_fits(Resources(1000, 8, 20480), Resources(8000, 60, 1048576)) == 7
    assert count_fits(Resources(1000, 8, 204800), Resources(8000, 192, 1048576)) == 5
    assert count_fits(Resources(0, 4, 1024), Resources(8000, 192, 1048576)) == 48


def test_cpu_work_gets_the_rest_and_never_the_reserve() -> None:
    """The table of a real pool: 192 CPUs, 8 free GPUs that keep 8 each: 32 jobs of 4 CPUs, not 48."""
    node = Resources(8000, 192, 1048576)
    assert count_fits(Resources(0, 4, 1024), node, KEPT) == 32
    assert count_fits(Resources(0, 1, 102400), node, KEPT) == 8
    assert count_fits(Resources(0, 4, 1024), Resources(0, 192, 1048576), KEPT) == 48, (
        "no GPU is free, so nothing is kept"
    )


def test_a_gpu_job_that_takes_its_share_is_not_held_up_and_a_greedy_one_is() -> None:
    node = Resources(8000, 192, 1048576)
    assert count_fits(Resources(1000, 8, 20480), node, KEPT) == 8
    assert count_fits(Resources(1000, 136, 20480), node, KEPT) == 1
    assert count_fits(Resources(1000, 137, 20480), node, KEPT) == 0


def test_where_others_have_eaten_the_reserve_gpu_jobs_take_what_is_left() -> None:
    assert count_fits(Resources(1000, 8, 20480), Resources(8000, 20, 1048576), KEPT) == 2


def test_a_share_lies_on_one_gpu() -> None:
    assert count_fits(Resources(400, 1, 1), Resources(2000, 99, 99)) == 4
    assert count_fits(Resources(), Resources(2000, 99, 99)) == 0, "what asks for nothing goes into nothing"


AMOUNTS = st.builds(
    Resources, st.sampled_from([0, 1000, 2000]), st.integers(0, 12), st.integers(0, 3), st.integers(0, 2)
)


@given(AMOUNTS, st.builds(Resources, st.sampled_from([0, 1000, 4000]), *[st.integers(0, 40)] * 3), AMOUNTS)
def test_it_is_the_largest_number_that_leaves_every_free_gpu_its_share(
    each: Resources, free: Resources, kept: Resources
) -> None:
    kept = kept._replace(gpu_milli=0)

    def fits(n: int) -> bool:
        left = free.plus(each, -n)
        enough = min(left) >= 0
        for need, there, keep in zip(each[1:], left[1:], kept[1:], strict=True):
            eats = need * 1000 - keep * each.gpu_milli > 0
            if eats and free.gpu_milli and there * 1000 < keep * left.gpu_milli:
                return False
        return enough

    if each == NO_RESOURCES:
        return
    most = count_fits(each, free, kept)
    assert most == 0 or fits(most)
    assert not fits(most + 1)
