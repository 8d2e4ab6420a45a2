"""The tests that `make check` selects by the files that changed."""

from __future__ import annotations

import pytest

from tests.changed import ALWAYS, ROOT, TESTS, selected


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("provisioner/planner/placement.py", ["planner"]),
        ("adapters/htcondor/overlay/pool.py", ["htcondor_overlay"]),
        ("provisioner/store/migrations/0001_initial.sql", ["store"]),
        ("provisioner/drone/mps.sh", ["test_mps.py"]),
        ("tests/golden/records/reasons.txt", ["golden"]),
        ("tests/planner/test_costs.py", ["planner/test_costs.py"]),
        ("docs/reference/cli.md", ["test_docs.py"]),
        ("README.md", ["test_docs.py"]),
        ("requirements/dev.txt", ["test_public_face.py"]),
        ("templates/site-adapter/copier.yml", ["test_site_template.py"]),
        (".github/workflows/ci.yml", ["test_workflows.py"]),
        ("tests/labs/htcondor.py", []),
    ],
)
def test_a_file_selects_the_tests_of_its_package(path: str, tests: list[str]) -> None:
    found = selected([ROOT / "benchmarks/run.py", ROOT / path])
    assert {TESTS / name for name in (*tests, "test_deciding.py", *ALWAYS)} <= set(found)
    assert TESTS not in found


@pytest.mark.parametrize("path", ["provisioner/model.py", "tests/conftest.py", "pyproject.toml"])
def test_a_file_that_all_use_selects_all_tests(path: str) -> None:
    assert TESTS in selected([ROOT / "provisioner/planner/costs.py", ROOT / path])


def test_without_a_change_all_tests_are_selected() -> None:
    assert selected([]) == [TESTS]
