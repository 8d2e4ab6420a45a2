"""``provisioner import``: a COBalD/TARDIS configuration becomes ours, and what has no counterpart is listed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner import formatting
from provisioner.cli.cells import text, whole
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.listing import Column, Listing
from provisioner.cli.options import Pick, Show, shared
from provisioner.cli.output import note, picked, present
from provisioner.migrate import ImportFinding, ImportOutcome, ImportResult, ImportSource, convert

if TYPE_CHECKING:
    from provisioner.config.strict_yaml import YamlDocument

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SCHEMA = "provisioner.import/1"

_FIRST = (ImportOutcome.NEEDED, ImportOutcome.DROPPED, ImportOutcome.CHANGED, ImportOutcome.CONVERTED)
_TINTS = {
    ImportOutcome.CONVERTED: "green",
    ImportOutcome.CHANGED: "yellow",
    ImportOutcome.DROPPED: "yellow",
    ImportOutcome.NEEDED: "red",
}


@app.command()
@shared
def import_tardis(
    show: Show,
    pick: Pick,
    tardis: Annotated[
        Path,
        typer.Argument(
            metavar="TARDIS_YML",
            help="Configuration of TARDIS, or of COBalD with a `tardis` section.",
            show_default=False,
        ),
    ],
    cobald: Annotated[
        Path | None, typer.Option("--cobald", metavar="COBALD_YML", help="COBalD's configuration, with the pipeline.")
    ] = None,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIRECTORY", help="Where provisioner.yaml and site_configs/ are written.")
    ] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
) -> None:
    """Turn a COBalD/TARDIS configuration into ours.

    Writes provisioner.yaml and a file per site, and tells of every key of the old files what became of it: converted;
    changed (it means something else here); no counterpart; needs you. What needs you stands as <...> in our files,
    and provisioner check names each. Nothing is run, and no secret is copied. Exit 3 if something needs you, or if the
    old files cannot be understood; then nothing is written.

    \b
    Examples:
      provisioner import tardis.yml
      provisioner import tardis.yml --cobald cobald.yml --to new
      provisioner import tardis.yml --to new -o json | jq -r '.items[] | select(.verdict == "needs you") | .ours'
    """
    from provisioner.loader import site_adapters

    sources = [_source(path) for path in (tardis, cobald) if path is not None]
    made = convert(
        sources[0], sources[1] if cobald is not None else None, installed=site_adapters(), read_file=_beside(tardis)
    )
    if made is None:
        raise _refusal([source.document for source in sources])
    _write(to, made.files, force)
    listing = Listing(SCHEMA, columns(), sorted(made.findings, key=lambda f: _FIRST.index(f.verdict)), lambda f: f.key)
    present(replace(show, watch=False), lambda: picked(listing, pick))
    note(f"written to {to}: {', '.join(made.files)}")
    _tell(made)


def columns() -> tuple[Column[ImportFinding], ...]:
    """Of findings."""
    return (
        Column(
            "file",
            lambda f: f.file,
            "File of the old configuration.",
            level=0,
            head="WHERE",
            least=16,
            tail=True,
            show=lambda f: f"{os.path.basename(f.file)}:{f.line}",
        ),
        whole("line", lambda f: f.line, "Line, from 1."),
        Column(
            "verdict",
            lambda f: f.verdict.value,
            "What became of it.",
            level=0,
            head="BECAME",
            choices=tuple(v.value for v in ImportOutcome),
            tint=lambda f: _TINTS[f.verdict],
        ),
        text("key", lambda f: f.key, "Its key there, dotted.", level=0, least=20, tail=True),
        text("ours", lambda f: f.ours, "File and key here; empty for none.", level=1),
        Column(
            "text",
            lambda f: f.text,
            "What happened to it, and what to do.",
            level=0,
            head="HOW, AND WHAT TO DO",
            least=30,
            wrap=True,
            show=lambda f: f"{f.ours}: {f.text}" if f.ours else f.text,
        ),
    )


def _source(path: Path) -> ImportSource:
    from provisioner.config.strict_yaml import YamlDocument, text_of

    document = YamlDocument(str(path))
    content = text_of(path, document)
    if content is None:
        raise _refusal([document])
    return ImportSource(document, content)


def _refusal(documents: list[YamlDocument]) -> Failure:
    problems = [problem for document in documents for problem in document.problems]
    return Failure(
        *(formatting.sanitize(str(p)) for p in problems),
        f"{formatting.count(len(problems), 'problem')}: nothing is written",
        code=Exit.UNMET,
    )


def _beside(tardis: Path) -> Callable[[str], str | None]:
    """Files that TARDIS names are sought beside its configuration, then here: TARDIS seeks them where it is started."""

    def read_file(name: str) -> str | None:
        from provisioner.config.strict_yaml import YamlDocument, text_of

        for place in (tardis.parent / name, Path(name)):
            try:
                found = text_of(place, YamlDocument(str(place)))
            except ValueError:  # a name that cannot be one of a file
                return None
            if found is not None:
                return found
        return None

    return read_file


def _write(to: Path, files: Mapping[str, str], force: bool) -> None:
    """All of them, or none if one is there already."""
    there = [to / name for name in files if os.path.lexists(to / name)]
    if there and not force:
        raise Failure(
            *(f"{path} is there already" for path in there),
            "nothing is written: name another directory with --to, or write over it with --force",
        )
    for name, content in files.items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def _tell(made: ImportResult) -> None:
    counts = ", ".join(f"{made.count(v)} {v.value}" for v in ImportOutcome if made.count(v))
    if made.count(ImportOutcome.NEEDED):
        raise Failure(f"{counts}; fill in what stands in <...>, then: provisioner check", code=Exit.UNMET)
    note(counts)
