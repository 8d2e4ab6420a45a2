"""Reference pages made from the code: ``python -m provisioner.cli.reference --write docs/reference/cli.md``.

Also ``reasons.md`` and ``cli-schemas.json``, by the name of the file. Without ``--write`` the page goes to stdout.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import typer

from provisioner import formatting, reasons
from provisioner.cli.exits import EXIT_HELP, Exit
from provisioner.cli.options import Pick, Show, Where
from provisioner.cli.reason_examples import EXAMPLES
from provisioner.cli.root import VERBS, Verbs, app
from provisioner.cli.schemas import schemas_text

NOTICE = "<!-- Made by `python -m provisioner.cli.reference --write {}`; do not edit. -->"

SHARED = {f.name: group.__name__ for group in (Where, Show, Pick) for f in fields(group)}
GROUP_WORDS = {"Where": "where the record is", "Show": "form of the output", "Pick": "rows of a list"}


def cli_page() -> str:
    """``docs/reference/cli.md``."""
    root = typer.main.get_command(app)
    assert isinstance(root, Verbs)
    context = typer.Context(root, info_name="provisioner")
    lines = [
        NOTICE.format("docs/reference/cli.md"),
        "",
        "# The command line",
        "",
        *_prose(root.help or ""),
        "",
        "## Exit codes",
        "",
        "| code | means |",
        "|---|---|",
        *_exit_rows(),
        "",
        "## Options that many verbs share",
        "",
        *_shared_options(root, context),
        "",
    ]
    for verb in VERBS:
        command = root.get_command(context, verb)
        if command is not None:
            lines += _verb(f"provisioner {verb}", command, context, "##")
    return "\n".join(lines).rstrip() + "\n"


def _exit_rows() -> Iterator[str]:
    parts = EXIT_HELP.removeprefix("Exit codes: ").rstrip(".").split(";")
    meanings = dict(part.strip().split(" ", 1) for part in parts)
    for code in Exit:
        yield f"| {code.value} | {meanings[str(code.value)]} |"


def _shared_options(root: Verbs, context: Any) -> list[str]:
    command = root.get_command(context, "drones")
    shown = []
    for group, title in GROUP_WORDS.items():
        shown += [f"**{title[0].upper()}{title[1:]}**", "", "| option | means |", "|---|---|"]
        shown += [_row(p, context) for p in command.params if SHARED.get(p.name) == group]
        shown.append("")
    return shown[:-1]


def _verb(path: str, command: Any, context: Any, level: str) -> list[str]:
    """One verb and those below it."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    own = [p for p in command.params if p.param_type_name == "option" and p.name not in (*SHARED, "help")]
    groups = [w for g, w in GROUP_WORDS.items() if any(SHARED.get(p.name) == g for p in command.params)]
    lines = [f"{level} `{path}`", "", *_prose(command.help or ""), ""]
    if arguments:
        lines += ["| argument | means |", "|---|---|"]
        lines += [_row(p, context) for p in arguments]
        lines.append("")
    if own:
        lines += ["| option | means |", "|---|---|", *(_row(p, context) for p in own), ""]
    if groups:
        lines += [f"Shared options: {'; '.join(groups)}.", ""]
    for name, below in getattr(command, "commands", {}).items():
        lines += _verb(f"{path} {name}", below, context, level + "#")
    return lines


def _row(parameter: Any, context: Any) -> str:
    """One option or argument as its help shows it."""
    name, meaning = parameter.get_help_record(context) or ("", "")
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name) + (" ..." if parameter.nargs == -1 else "")
        meaning = meaning.removesuffix("[required]").rstrip()
    return f"| `{_cell(name)}` | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(help_text: str) -> list[str]:
    """The help as Markdown: examples, marked by a backspace for the terminal, become code."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(help_text).split("\n\n"):
        if paragraph.startswith("\b\nExamples:"):
            lines += ["```console", *(f"$ {line.strip()}" for line in paragraph.splitlines()[2:]), "```"]
        else:
            lines += [" ".join(paragraph.split()), ""]
    return lines


# -------------------------------------------------------------------------------------------------------------- reasons

TIER_WORDS = {
    formatting.Category.CONFIGURATION: (
        "Configuration",
        "Somebody has to change something: the jobs, or the configuration.",
    ),
    formatting.Category.NOTHING_FITS: (
        "Nothing fits",
        "No drone type is good enough; the nearest, and where it fails first.",
    ),
    formatting.Category.LIMIT: ("Limit", "A limit that the operator set is reached."),
    formatting.Category.BACK_OFF: ("Back-off", "Something failed, and is left alone until a time."),
    formatting.Category.WAITING_SITE: ("Waiting for the site", "It comes by itself, or a site has to answer first."),
    formatting.Category.WAITING_NEGOTIATION: ("Waiting for negotiation", "The pool has not looked at the jobs yet."),
    formatting.Category.START: ("Why a drone is started", ""),
    formatting.Category.LEAVE: ("Why a drone leaves", ""),
    formatting.Category.STEP: ("What became known of a drone", ""),
}


def reasons_page() -> str:
    """``docs/reference/reasons.md``."""
    lines = [
        NOTICE.format("docs/reference/reasons.md"),
        "",
        "# Reasons",
        "",
        "Every action, every refusal and every step of a drone has one of these. `kind` is its stable name in JSON, in",
        "the record; the fields are its numbers. What the tiers are for:",
        "[Reasons](../explanation/reasons.md).",
    ]
    for tier, (title, words) in TIER_WORDS.items():
        lines += ["", f"## {title}", ""]
        lines += [words, ""] if words else []
        for example in (e for e in EXAMPLES if formatting.category(e) is tier):
            lines += _reason(example)
    return "\n".join(lines).rstrip() + "\n"


def _reason(example: reasons.Reason) -> list[str]:
    meaning = inspect.getdoc(type(example)) or ""
    has_meaning = meaning and not meaning.startswith(f"{type(example).__name__}(")
    named = ", ".join(f"`{f.name}` ({_type_of(f.type)})" for f in fields(example) if f.name != "kind")
    return [
        f"### `{example.kind}`",
        "",
        *([" ".join(meaning.split()), ""] if has_meaning else []),
        *([f"Fields: {named}.", ""] if named else []),
        f"> {formatting.describe(example)}",
        "",
    ]


def _type_of(annotation: object) -> str:
    words = {"str": "text", "int": "integer", "float": "number", "int | None": "integer or null"}
    return words[str(annotation)]


def kinds() -> list[str]:
    """The stable names of all reasons."""
    return [t.__dataclass_fields__["kind"].default for t in get_args(reasons.Reason)]


PAGES: dict[str, Callable[[], str]] = {"cli.md": cli_page, "reasons.md": reasons_page, "cli-schemas.json": schemas_text}


def main(argv: Sequence[str]) -> int:
    """Write the pages that are named, or print one."""
    names = [Path(a) for a in argv if a != "--write"]
    unknown = [n for n in names if n.name not in PAGES]
    if not names or unknown:
        print(f"name pages to make: {', '.join(PAGES)}", file=sys.stderr)
        return Exit.USAGE
    for name in names:
        if "--write" in argv:
            name.write_text(PAGES[name.name](), encoding="utf-8")
        else:
            sys.stdout.write(PAGES[name.name]())
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
