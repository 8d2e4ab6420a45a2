"""What an operator writes about an HTCondor site: what passes, and how the rest is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from adapters.htcondor.site.settings import HTCondorSiteConfig
from tests.htcondor_site.orders import A100, CPU, config


def refused(**options: object) -> str:
    with pytest.raises(ValidationError) as found:
        config(**options)
    [error] = found.value.errors()
    return str(error["msg"])


def test_what_is_harmless_passes() -> None:
    commands = {
        "+IsBackfill": "True",
        "My.Project": '"grid"',
        "accounting_group": "group_backfill",
        "universe": "grid",
        "grid_resource": "condor ce.example.org ce.example.org:9619",
        "requirements": 'TARGET.GpuClass == "a100"',
        "some_command_of_next_year": "1",
    }
    assert config(submit=commands, types={"a100": {"submit": {"rank": "1"}}}).submit == commands


OURS = (
    "queue request_gpus Request_CPUs +RequestMemory My.DroneId +ProvisionerController executable "
    "periodic_remove +PeriodicRemove leave_in_queue job_lease_duration environment max_retries "
    "transfer_input_files output log initialdir on_exit_hold job_max_vacate_time inputs drone_id if "
    "include +NumJobStarts allowed_execute_duration max_job_retirement_time"
)


@pytest.mark.parametrize("name", OURS.split())
def test_what_is_ours_is_refused_by_name_with_the_repair(name: str) -> None:
    for options in ({"submit": {name: "1"}}, {"types": {"a100": {"submit": {name: "1"}}}}):
        message = refused(**options)
        assert f"`{name}`" in message
        assert "remove it" in message


@pytest.mark.parametrize("name", ["requirements", "require_gpus", "rank", "+IsBackfill", "My.Project"])
def test_a_submit_command_that_is_no_expression_is_refused_with_one_of_a_slot(name: str) -> None:
    for options in ({"submit": {name: "1 2"}}, {"types": {"a100": {"submit": {name: "1 2"}}}}):
        message = refused(**options)
        assert "`1 2` is not a ClassAd expression" in message
        assert "Owner" not in message
    assert "`TARGET.Memory > 4096`" in refused(types={"a100": {"requirements": "1 2"}})


def test_other_commands_and_macros_of_submit_files_are_not_judged() -> None:
    commands = {"accounting_group": "a b", "rank": "$(kflops) 1", "+Attempt": "$$([1 2])"}
    assert config(submit=commands).submit == commands


def test_options_for_a_type_that_is_not_there_and_shares_of_gpus_do_not_fit() -> None:
    options = config(types={"v100x": {"submit": {"rank": "1"}}, "a100": {}})
    half = replace(A100, name="half", gpu_milli=500)
    assert list(options.misfits([A100, CPU])) == [
        (("options", "types", "v100x"), "there is no drone type `v100x`: did you mean `a100`?")
    ]
    assert list(config().misfits([A100, CPU, half])) == [
        (("types", "half", "gpus"), "`gpus`: a share of a GPU is a whole one to an HTCondor site: write `gpus: 1`")
    ]


def test_what_import_left_open_is_refused_each_at_its_place() -> None:
    with pytest.raises(ValidationError) as found:
        config(submit={"rank": "1", "accounting_group": "<the group>", "+X": "<X without $Y>"}, env={"A": "<A b>"})
    assert [error["loc"] for error in found.value.errors()] == [
        ("submit", "accounting_group"),
        ("submit", "+X"),
        ("env", "A"),
    ]
    assert all("still to be filled in" in str(error["msg"]) for error in found.value.errors())
    assert config(env={"A": "<10.0.0.1:9618>"}).env == {"A": "<10.0.0.1:9618>"}


def test_a_site_without_any_token_is_refused() -> None:
    with pytest.raises(ValidationError, match="`token` or `token_directory` is wanted"):
        HTCondorSiteConfig.model_validate({"collector": "a:1", "work_directory": "/w"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"submit": {"rank": value}}, "on one line") for value in ("", " ", "a\nqueue 5", "a\rb", "a \\", "\x00")),
        *(
            ({"submit": {name: "1"}}, "not a submit command")
            for name in ("a b", "queue 5\nrank", "a=b", "$(x)", "", "+")
        ),
        *(
            ({"env": {name: "1"}}, "remove it")
            for name in ("DRONE_DIR", "PROVISIONER_X", "_CONDOR_X", "CUDA_VISIBLE_DEVICES")
        ),
        ({"env": {"A": "$$(x)"}}, "begins a macro"),
        ({"submit": {"+IsBackfill": "True", "My.isbackfill": "False"}}, "the same"),
        ({"types": {"a100": {"requirements": "Cpus >"}}}, "not a ClassAd expression"),
        ({"owner": {"jobs": "true"}}, "no queue is named: write `schedds: [name]`"),
        ({"collector": "condor.example.org"}, "write `condor.example.org:9618`"),
        ({"lease": "19s"}, "greater than or equal"),
        ({"retain_finished": "59s"}, "greater than or equal"),
    ],
)
def test_a_mistake_is_refused_with_its_repair(options: dict[str, object], words: str) -> None:
    assert words in refused(**options)
