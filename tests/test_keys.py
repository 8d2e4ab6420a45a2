"""Keys with structure: each has one text, which store and JSON hold."""

import pytest

from provisioner import model as m
from provisioner.serialization import from_json, to_json

SCOPES = {
    "topas": m.Scope("topas"),
    "topas/a100": m.Scope("topas", "a100"),
    "topas/a100#7@schedd#1": m.Scope("topas", "a100", "7@schedd#1"),
    "topas@n1": m.Scope("topas", node="n1"),
    "user:ann@example.org": m.Scope(user="ann@example.org"),
}


@pytest.mark.parametrize(("text", "scope"), SCOPES.items())
def test_a_scope_and_its_text_are_the_same(text: str, scope: m.Scope) -> None:
    assert m.Scope.parse(text) == scope and str(scope) == text
    breaker = m.Breaker(scope)
    assert f'"scope":"{text}"' in to_json(breaker)
    assert from_json(m.Breaker, to_json(breaker)) == breaker


@pytest.mark.parametrize(
    ("scope", "outer", "within"),
    [
        ("here", "here", True),
        ("here/a100", "here", True),
        ("here/a100#7", "here", True),
        ("here/a100#7", "here/a100", True),
        ("here@n1", "here", True),
        ("here@n1", "here/a100", False),
        ("here2@n1", "here", False),
        ("here", "here/a100", False),
        ("here/a100", "here/a100#7", False),
        ("user:here", "here", False),
        ("user:ann", "user:ann", True),
    ],
)
def test_the_reset_of_a_site_reaches_its_types_nodes_and_classes(
    scope: str, outer: str, within: bool
) -> None:
    assert m.Scope.parse(scope).is_within(m.Scope.parse(outer)) is within


@pytest.mark.parametrize(
    ("text", "subject"),
    [("all", m.Subject("all")), ("class:a:1", m.Subject("class", "a:1"))],
)
def test_a_subject_and_its_text_are_the_same(text: str, subject: m.Subject) -> None:
    assert m.Subject.parse(text) == subject and str(subject) == text
