"""Questions about the record and their answers, which command line, API and pages show.

To add one, write a function of a reader and a query in a module here, and name it in
:data:`QUESTIONS`: command line, API and OpenAPI follow from its query. A page of it is written in
``provisioner/web/pages.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioner.answers.query import RecordQuestion

QUESTIONS: Mapping[str, str] = {
    "status": "status:status",
    "drones": "drones:drones",
    "drones show": "drones:show_drone",
    "sites": "sites:sites",
    "sites show": "sites:show_site",
    "demand": "demand:demand",
    "services": "services:services",
    "explain job": "explain:explain_job",
    "explain class": "explain:explain_class",
    "explain service": "services:explain_service",
    "explain id": "explain:explain_id",
    "plan": "plan:plan",
    "events": "events:events",
    "estimates": "estimates:estimates",
    "usage": "usage:usage",
    "accounting report": "accounting:report",
    "accounting statement": "accounting:statement",
    "accounting runs": "accounting:runs",
}
"""Module and function of each question by its words on the command line, in the order of the help."""


def load_question(words: str) -> RecordQuestion:
    """Return a question. Only its module is imported."""
    module, _, name = QUESTIONS[words].partition(":")
    found: RecordQuestion = getattr(import_module(f"provisioner.answers.{module}"), name)
    return found
