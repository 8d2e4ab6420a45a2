"""``provisioner import``: a COBalD/TARDIS configuration becomes ours; what has no counterpart is listed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner import formatting
from provisioner.cli.options import Exit, Pick, Show, VerbError, shared
from provisioner.cli.output import Column, Listing, note, picked, present, text, whole, words
from provisioner.migrate import ImportOutcome, ImportResult, ImportSource, convert

if TYPE_CHECKING:
    from provisioner.config.strict_yaml import YamlDocument

IMPORT_SCHEMA = "provisioner.import/1"

_VERDICT_ORDER = (ImportOutcome.NEEDED, ImportOutcome.DROPPED, ImportOutcome.CHANGED, ImportOutcome.CONVERTED)
_VERDICT_TINTS = {
    ImportOutcome.CONVERTED: "green",
    ImportOutcome.CHANGED: "yellow",
    ImportOutcome.DROPPED: "yellow",
    ImportOutcome.NEEDED: "red",
}


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
    _write_files(to, made.files, force)
    listing = Listing(
        IMPORT_SCHEMA,
        finding_columns(),
        sorted(made.findings, key=lambda f: _VERDICT_ORDER.index(f.verdict)),
        lambda f: f.key,
    )
    present(replace(show, watch=False), lambda: picked(listing, pick))
    note(f"written to {to}: {', '.join(made.files)}")
    _report_counts(made)


def finding_columns() -> tuple[Column, ...]:
    """Return the columns of findings."""
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
            choices=tuple(v.value for v in ImportOutcome),
            tint=_VERDICT_TINTS,
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
    from provisioner.config.strict_yaml import YamlDocument, text_of

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


def _write_files(to: Path, files: Mapping[str, str], force: bool) -> None:
    """Write all files, or none if one exists."""
    there = [to / name for name in files if os.path.lexists(to / name)]
    if there and not force:
        raise VerbError(
            *(f"{path} is there already" for path in there),
            "nothing is written: name another directory with --to, or write over it with --force",
        )
    for name, content in files.items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def _report_counts(made: ImportResult) -> None:
    counts = ", ".join(f"{made.count(v)} {v.value}" for v in ImportOutcome if made.count(v))
    if made.count(ImportOutcome.NEEDED):
        raise VerbError(f"{counts}; fill in what stands in <...>, then: provisioner check", code=Exit.UNMET)
    note(counts)
