"""Verbs that ask a question about the record, here or of the web service."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import typer

from provisioner.answers import QUESTIONS, load_question
from provisioner.answers.query import Query, RecordQuestion
from provisioner.cli import options as opt
from provisioner.cli.output import present


def ask(question: RecordQuestion, query: Query, host: opt.Host) -> None:
    """Show the answer from the record, or that of the service at ``--url``."""
    if host.url is not None:
        from provisioner.cli import remote

        present(query, host, partial(remote.answer, question, query, host))
        return
    reader = opt.open_record(host)
    present(query, host, partial(question, reader, query), reader.now)


def verb_of(question: RecordQuestion, help: str = "") -> Callable[..., None]:
    """Return the verb that asks a question."""

    def verb(ctx: typer.Context, query: Query, host: opt.Host) -> None:
        if not opt.verb_follows(ctx):
            ask(question, query, host)

    verb.__annotations__ = {"ctx": typer.Context, "query": question.query, "host": opt.Host}
    return opt.shared(verb, help or question.help)


def question_app(words: str) -> typer.Typer:
    """Return the group of a question and those whose words begin with its."""
    app = opt.verbs()
    app.callback(invoke_without_command=True)(verb_of(load_question(words)))
    for longer in QUESTIONS:
        if longer.startswith(f"{words} "):
            app.command(longer.partition(" ")[2])(verb_of(load_question(longer)))
    return app


class ExplainVerbs(opt.VerbGroup):
    """Verbs that explain things of one kind; an id in the place of a verb is looked up among all kinds."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        is_misspelt = len(args) > 1 and not args[1].startswith("-")
        if args[0] not in self.commands and not is_misspelt:
            args = ["id", *args]
        return super().resolve_command(ctx, args)


explain_app = opt.verbs(no_args_is_help=True, cls=ExplainVerbs)


@explain_app.callback()
def explain() -> None:
    """Explain a job, a drone, a job class, a site or a service (`explain ID`).

    Shows why a job waits, why a drone is in its state and what happens next, how a job class fits each drone type, or
    why a service has so many servers.
    """


EXPLAIN_DRONE_HELP = """Explain the state of a drone, as `drones show` does.

Shows every step with its reason, the limit of its state, and the next step.

\b
Examples:
  provisioner explain drone 8812.0 -o json
"""
explain_app.command("job")(verb_of(load_question("explain job")))
explain_app.command("class")(verb_of(load_question("explain class")))
explain_app.command("service")(verb_of(load_question("explain service")))
explain_app.command("id")(verb_of(load_question("explain id")))
explain_app.command("drone")(verb_of(load_question("drones show"), EXPLAIN_DRONE_HELP))
