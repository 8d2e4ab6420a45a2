"""``provisioner import``: a COBalD/TARDIS configuration becomes ours; what has no counterpart is listed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.options import Exit, Pick, Show, VerbError, shared
from provisioner.cli.output import Column, Listing, note, picked, present, text, whole, words
from provisioner.config.strict_yaml import YamlDocument, text_of
from provisioner.loader import site_adapters
from provisioner.migrate import ImportOutcome, ImportSource, convert

IMPORT_SCHEMA = "provisioner.import/1"

_TINTS = {
    ImportOutcome.NEEDED: "red",
    ImportOutcome.DROPPED: "yellow",
    ImportOutcome.CHANGED: "yellow",
    ImportOutcome.CONVERTED: "green",
}
"""Colours of the outcomes, in the order of the list."""


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

    Writes provisioner.yaml and a file per site, and reports what became of each key of the old files: converted;
    changed (it means something else here); no counterpart; needs you. Values to fill in are <...> in our files,
    and provisioner check names each. Nothing is run, and no secret is copied. Exit 3 if something needs you, or if the
    old files cannot be understood; then nothing is written.

    \b
    Examples:
      provisioner import tardis.yml
      provisioner import tardis.yml --cobald cobald.yml --to new
      provisioner import tardis.yml --to new -o json | jq -r '.items[] | select(.verdict == "needs you") | .ours'
    """
    sources = [_source(path) for path in (tardis, cobald) if path is not None]
    made = convert(*sources, installed=site_adapters(), read_file=_beside(tardis))
    if made is None:
        raise _refusal([source.document for source in sources])
    _write_files(to, made.files, force)
    rows = sorted(made.findings, key=lambda finding: list(_TINTS).index(finding.verdict))
    listing = Listing(IMPORT_SCHEMA, finding_columns(), rows, lambda finding: finding.key)
    present(replace(show, watch=False), lambda: picked(listing, pick))
    note(f"written to {to}: {', '.join(made.files)}")
    counts = ", ".join(f"{made.count(outcome)} {outcome.value}" for outcome in ImportOutcome if made.count(outcome))
    if made.count(ImportOutcome.NEEDED):
        raise VerbError(f"{counts}; fill in each <...>, then: provisioner check", code=Exit.UNMET)
    note(counts)


def finding_columns() -> tuple[Column, ...]:
    """Return the columns of findings."""
    outcomes = tuple(outcome.value for outcome in ImportOutcome)
    return (
        text(
            "file",
            "File of the old configuration.",
            head="WHERE",
            least=16,
            tail=True,
            show=lambda f: f"{os.path.basename(f.file)}:{f.line}",
        ),
        whole("line", "Line, from 1."),
        text(
            "verdict",
            "What became of it.",
            "verdict.value",
            head="BECAME",
            choices=outcomes,
            tint=_TINTS,
        ),
        text("key", "Its key there, dotted.", level=0, least=20, tail=True),
        text("ours", "File and key here; empty for none.", level=1),
        words(
            "text",
            "What happened to it, and what to do.",
            head="HOW, AND WHAT TO DO",
            least=30,
            show=lambda f: f"{f.ours}: {f.text}" if f.ours else f.text,
        ),
    )


def _source(path: Path) -> ImportSource:
    document = YamlDocument(str(path))
    content = text_of(path, document)
    if content is None:
        raise _refusal([document])
    return ImportSource(document, content)


def _refusal(documents: list[YamlDocument]) -> VerbError:
    problems = [problem for document in documents for problem in document.problems]
    return VerbError(
        *(formatting.sanitize(str(p)) for p in problems),
        f"{formatting.count(len(problems), 'problem')}: nothing is written",
        code=Exit.UNMET,
    )


def _beside(tardis: Path) -> Callable[[str], str | None]:
    """Return a reader of files that TARDIS names: beside its configuration, then here, where TARDIS is started."""

    def read_file(name: str) -> str | None:
        try:
            texts = (text_of(place, YamlDocument(str(place))) for place in (tardis.parent / name, Path(name)))
            return next((text for text in texts if text is not None), None)
        except ValueError:  # a name that cannot be one of a file
            return None

    return read_file


def _write_files(to: Path, files: Mapping[str, str], force: bool) -> None:
    """Write all files, or none if one exists."""
    there = [to / name for name in files if os.path.lexists(to / name)]
    if there and not force:
        raise VerbError(
            *(f"{path} exists already" for path in there),
            "nothing is written: name another directory with --to, or write over it with --force",
        )
    for name, content in files.items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
