"""What is generated from the models is current, and judges files as the models do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import jsonschema
import pytest
from pydantic import TypeAdapter

from provisioner.config import check, strict_yaml
from provisioner.config.messages import fields_of, union_members
from provisioner.config.models import ConfigSection, ControllerFile, SiteFile
from provisioner.config.schema import controller_schema, site_schema

REPOSITORY = Path(__file__).parents[2]
BROKEN = Path(__file__).parent / "broken"
SHIPPED = sorted(
    path for path in (REPOSITORY / "site_configs").rglob("*.yaml") if path.name != "world.yaml"
)
"""World files are for `provisioner simulate` and have a form of their own (tests/simulator/test_world_file.py)."""
STRUCTURAL = """
adapter-option-typo adapter-option-typo-in-a-list bad-site-name bad-type-name brake-above-one
capability-times-ten capability-with-three-parts driver-of-the-display driver-without-quotes duration-negative
duration-out-of-order duration-with-wrong-unit duration-without-unit fraction-for-a-whole-number gpus-negative
huge key-in-the-wrong-place list-for-a-mapping literal-secret literal-secret-in-mapping missing-option
missing-options missing-required missing-sections negative no-sites no-types number-as-name overlay-option-typo
quoted-number sharing-misspelt size-in-wrong-case size-with-ambiguous-unit size-with-wrong-unit
size-without-unit text-for-a-number text-for-sites text-for-types truth-for-text unknown-key-at-top
unknown-key-in-limits unknown-key-in-overlay unknown-key-in-policy unknown-key-in-site unknown-key-in-store
unknown-key-in-timeouts unknown-key-in-type unknown-overlay-adapter unknown-site-adapter zero-starts
"""
"""Broken configurations whose mistake the JSON Schema finds, too."""


def judge(file: Path) -> list[str]:
    """What JSON Schema finds wrong in ``file``."""
    tree = strict_yaml.read(file).tree
    schema = site_schema() if "site" in tree else controller_schema()
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(tree)]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_shipped_example_is_valid_by_both(file: Path) -> None:
    assert check(file).problems == []
    assert judge(file) == []


@pytest.mark.parametrize("name", ["literal-secret", "literal-secret-in-mapping"])
def test_a_secret_in_a_configuration_is_never_repeated(name: str) -> None:
    file = BROKEN / f"{name}.yaml"
    assert (
        "eyJ" in file.read_text()
        and [each for each in check(file).problems if "eyJ" not in str(each)]
        == check(file).problems
        != []
    )


@pytest.mark.parametrize("name", STRUCTURAL.split())
def test_what_is_broken_in_structure_is_broken_by_the_schema_too(name: str) -> None:
    assert judge(BROKEN / f"{name}.yaml")


def sections(model: type[ConfigSection]) -> list[type[ConfigSection]]:
    below = [arm for field in fields_of(model).values() for arm in union_members(field.annotation)]
    below += [inner for arm in below for inner in getattr(arm, "__args__", ())]
    return [model] + [
        s
        for arm in below
        if isinstance(arm, type) and issubclass(arm, ConfigSection)
        for s in sections(arm)
    ]


def test_every_key_has_a_meaning_and_an_example_that_is_valid() -> None:
    everything = sections(ControllerFile) + sections(SiteFile)
    assert len(everything) == 26
    for model in everything:
        for key, field in fields_of(model).items():
            assert field.description, f"{model.__name__}.{key}"
            assert field.examples, f"{model.__name__}.{key}"
            TypeAdapter(Annotated[field.annotation, "as written", *field.metadata]).validate_python(
                field.examples[0]
            )
