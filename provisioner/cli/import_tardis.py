"""``provisioner import``: a COBalD/TARDIS configuration becomes ours; what has no counterpart is listed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.config.strict_yaml import YamlDocument, text_of
from provisioner.loader import site_adapters
from provisioner.migrate import ImportFinding, ImportOutcome, ImportSource, convert

IMPORT_SCHEMA = "provisioner.import/1"

_TINTS = {
    ImportOutcome.NEEDED: "red",
    ImportOutcome.DROPPED: "yellow",
    ImportOutcome.CHANGED: "yellow",
    ImportOutcome.CONVERTED: "green",
}
"""Colours of the outcomes, in the order of the list."""


_TARDIS_HELP = "Configuration of TARDIS, or of COBalD with a `tardis` section."
_TO_HELP = "Where provisioner.yaml and site_configs/ are written."


@opt.shared
def import_tardis(
    show: opt.Show,
    pick: opt.Pick,
    tardis: Annotated[Path, opt.argument("TARDIS_YML", _TARDIS_HELP)],
    cobald: Annotated[Path | None, opt.option("COBALD_YML", "COBalD's configuration, with the pipeline.")] = None,
    to: Annotated[Path, opt.option("DIRECTORY", _TO_HELP)] = Path("."),
    force: Annotated[bool, opt.switch("Write over files that are there.", "--force")] = False,
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
    listing = out.Listing(IMPORT_SCHEMA, finding_columns(), rows, lambda finding: finding.key)
    out.present(replace(show, watch=False), lambda: out.picked(listing, pick))
    out.note(f"written to {to}: {', '.join(made.files)}")
    counts = ", ".join(f"{made.count(outcome)} {outcome.value}" for outcome in ImportOutcome if made.count(outcome))
    if made.count(ImportOutcome.NEEDED):
        raise opt.VerbError(f"{counts}; fill in each <...>, then: provisioner check", code=opt.Exit.UNMET)
    out.note(counts)


def finding_columns() -> tuple[out.Column, ...]:
    """Return the columns of findings."""

    def where(finding: ImportFinding) -> str:
        return f"{os.path.basename(finding.file)}:{finding.line}"

    def how(finding: ImportFinding) -> str:
        return f"{finding.ours}: {finding.text}" if finding.ours else finding.text

    outcomes = tuple(outcome.value for outcome in ImportOutcome)
    how_doc = "What happened to it, and what to do."
    became = out.text("verdict", "What became of it.", "verdict.value", head="BECAME", choices=outcomes, tint=_TINTS)
    return (
        out.ident("file", "File of the old configuration.", head="WHERE", least=16, show=where),
        out.whole("line", "Line, from 1."),
        became,
        out.ident("key", "Its key there, dotted.", least=20),
        out.text("ours", "File and key here; empty for none.", level=1),
        out.words("text", how_doc, head="HOW, AND WHAT TO DO", least=30, show=how),
    )


def _source(path: Path) -> ImportSource:
    document = YamlDocument(str(path))
    content = text_of(path, document)
    if content is None:
        raise _refusal([document])
    return ImportSource(document, content)


def _refusal(documents: list[YamlDocument]) -> opt.VerbError:
    problems = [problem for document in documents for problem in document.problems]
    return opt.VerbError(
        *(formatting.sanitize(str(p)) for p in problems),
        f"{formatting.count(len(problems), 'problem')}: nothing is written",
        code=opt.Exit.UNMET,
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
        raise opt.VerbError(
            *(f"{path} exists already" for path in there),
            "nothing is written: name another directory with --to, or write over it with --force",
        )
    for name, content in files.items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
