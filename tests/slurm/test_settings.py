"""The configuration of a Slurm site: valid values, inheritance by types, and rejected values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.slurm.settings import REFUSED_SBATCH_OPTIONS, SlurmSiteConfig
from provisioner.model import DroneType

A100 = DroneType(
    "horeka", "a100", gpu_milli=1000, cpus=38, memory_mib=120_000, disk_mib=1000, walltime_s=86400.0
)
TOKEN = {"env": "T"}
SSH = {
    "host": "login",
    "user": "drone",
    "known_hosts": "/etc/ssh/known_hosts",
    "key": "/etc/provisioner/key",
}


def config(**options: object) -> SlurmSiteConfig:
    return SlurmSiteConfig.model_validate(options)


def refused(**options: object) -> str:
    with pytest.raises(ValidationError) as found:
        config(**options)
    [error] = found.value.errors()
    return str(error["msg"])


def test_options_of_a_type_replace_those_of_the_site() -> None:
    settings = config(
        partition="accelerated",
        account="hk",
        submit={"nice": "1", "exclude": "a"},
        types={
            "h100": {"partition": "accelerated-h100", "gres": "gpu:h100", "submit": {"nice": "2"}}
        },
    )
    general, special = settings.options_for("a100"), settings.options_for("h100")
    assert (general.partition, general.account, general.submit) == (
        "accelerated",
        "hk",
        {"nice": "1", "exclude": "a"},
    )
    assert (special.partition, special.account) == ("accelerated-h100", "hk")
    assert special.submit == {"nice": "2", "exclude": "a"}
    assert (general.gres, special.gres) == ("gpu", "gpu:h100")


@pytest.mark.parametrize("name", sorted(REFUSED_SBATCH_OPTIONS))
def test_a_reserved_option_is_rejected_with_the_alternative(name: str) -> None:
    message = refused(submit={name: "1"})
    assert f"`{name}`" in message
    assert REFUSED_SBATCH_OPTIONS[name] in message


@pytest.mark.parametrize(("short", "meant"), [("arr", "array"), ("no-req", "no-requeue")])
def test_an_abbreviation_of_a_reserved_option_is_rejected(short: str, meant: str) -> None:
    assert f"`{meant}`" in refused(submit={short: "1"})


def test_an_option_is_a_long_name_and_its_value_one_line() -> None:
    for option in ({"--nice": "1"}, {"nice=1 --hold": "1"}, {"nice": "1\n--hold"}, {"nice": False}):
        assert refused(submit=option)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        *((key, ("a b", "a\nb", "$(id)")) for key in ("partition", "account", "constraint")),
        ("scratch", ("tmp", "$TMP DIR", "/tmp/$(id)", "$1")),
    ],
)
def test_a_value_is_one_word(key: str, values: tuple[str, ...]) -> None:
    assert all(refused(**{key: value}) for value in values)


def test_each_way_wants_its_own_settings_and_no_other() -> None:
    url = "https://slurm.example.org:6820"
    assert (
        config(transport="rest", rest={"url": url, "user": "drone", "token": TOKEN}).rest
        is not None
    )
    assert (
        config(transport="rest", rest={"url": "unix:/run/restd.sock", "ssh": SSH}).rest is not None
    )
    assert "`rest` is required" in refused(transport="rest")
    assert "`token` is required" in refused(transport="rest", rest={"url": url})
    assert "`user` is required" in refused(transport="rest", rest={"url": url, "token": TOKEN})
    assert "unix socket" in refused(
        transport="rest", rest={"url": url, "user": "d", "token": TOKEN, "ssh": SSH}
    )
    assert "another transport" in refused(rest={"url": "unix:/run/restd.sock"})
    assert "another transport" in refused(transport="native", tools={"bin": "/opt/slurm/bin"})


def test_types_that_do_not_suit_a_slurm_site_are_reported() -> None:
    settings = config(types={"a1000": {"gres": "gpu:a100"}})
    share, endless = (
        replace(A100, name="share", gpu_milli=500),
        replace(A100, name="endless", walltime_s=0.0),
    )
    found = dict(settings.type_conflicts([A100, share, endless]))
    assert found.keys() == {
        ("types", "share", "gpus"),
        ("types", "endless", "walltime"),
        ("options", "types", "a1000"),
    }
    assert "`a100`" in found["options", "types", "a1000"]
    assert list(config().type_conflicts([A100])) == []


REST = {"transport": "rest", "rest": {"url": "unix:/run/restd.sock"}}
NATIVE = {"transport": "native"}


@pytest.mark.parametrize(("transport", "whom"), [(REST, "slurmrestd"), (NATIVE, "pyslurm")])
def test_options_that_a_transport_does_not_support_are_reported_with_their_place(
    transport: dict[str, Any], whom: str
) -> None:
    options = {
        "submit": {"nice": "5", "hint": "nomultithread"},
        "types": {"a100": {"submit": {"nice": "low"}}},
    }
    found = dict(config(**transport, **options).type_conflicts([A100]))
    assert found.keys() == {
        ("options", "submit", "hint"),
        ("options", "types", "a100", "submit", "nice"),
    }
    repair = "remove it, or write `transport: tools`"
    assert found["options", "submit", "hint"] == f"{whom} does not support `hint`: {repair}"
    assert found["options", "types", "a100", "submit", "nice"].startswith(
        f"{whom} does not support `nice: low`: "
    )
    assert not dict(config(**options).type_conflicts([A100]))  # sbatch takes all
