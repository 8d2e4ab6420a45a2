"""``provisioner accounting``: reports of the ledger, its comparison with AUDITOR, and files for others."""

from __future__ import annotations

import json
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from provisioner.accounting.accelerator import accelerator_message
from provisioner.accounting.entries import SECONDS_A_DAY
from provisioner.accounting.verification import (
    AuditorRecord,
    Finding,
    LedgerFinding,
    compare,
    days_without_records,
    parse_record,
)
from provisioner.answers import load_question
from provisioner.answers.accounting import (
    FINDINGS_SCHEMA,
    LEDGER_FINDING_COLUMNS,
    iso_day,
    months_before,
    parse_month,
    this_month,
)
from provisioner.answers.columns import Listing
from provisioner.answers.errors import UnmetError, VerbError, parsed
from provisioner.answers.query import Query
from provisioner.cli import options as opt, output as out
from provisioner.cli.questions import verb_of
from provisioner.formatting import count

TIMEOUT_S = 60.0

accounting_app = opt.verbs(no_args_is_help=True)


@accounting_app.callback()
def accounting() -> None:
    """Report GPU-hours from the controller's ledger, against pledges and for owners of sites.

    Compare the ledger with AUDITOR's records, and write files for accounting systems.
    """


accounting_app.command("report")(verb_of(load_question("accounting report")))
accounting_app.command("statement")(verb_of(load_question("accounting statement")))
accounting_app.command("runs")(verb_of(load_question("accounting runs")))

_Month = Annotated[str, opt.option("YYYY-MM", "The month (UTC). Default: this one.")]


@accounting_app.command("verify")
@opt.shared
def verify(
    query: Query,
    host: opt.Host,
    month: Annotated[str, opt.option("YYYY-MM", "The month (UTC). Default: the last one.")] = "",
    records: Annotated[
        str | None, opt.option("URL|FILE", "AUDITOR's server, or a file of its records.")
    ] = None,
    prefix: Annotated[str, opt.option("TEXT", "record_prefix of the collector.")] = "htcondor",
    cert: Annotated[
        Path | None, opt.option("FILE", "Certificate and key for AUDITOR's server, PEM.")
    ] = None,
    ca: Annotated[Path | None, opt.option("FILE", "Authorities of AUDITOR's server, PEM.")] = None,
    metrics: Annotated[
        Path | None, opt.option("FILE", "Write the numbers for node_exporter's textfile collector.")
    ] = None,
) -> None:
    """Check that the ledger of a month adds up, and that AUDITOR has the same jobs.

    Exit 3 if anything is found. Only runs with which a job left the queue have a record; their ids are compared, and
    what they held. Entries of single runs are kept for store.keep, at least 40 days.

    \b
    Examples:
      provisioner accounting verify --records https://auditor.example.org:8000 --cert host.pem
      provisioner accounting verify --month 2026-11 --records records.json -o json
    """
    reader = opt.open_record(host)
    month = month or months_before(this_month(), 1)
    days = parsed(parse_month, "--month", month)
    found = reader.ledger_findings(*days)
    silent = list[int]()
    others = list[str]()
    if records is not None:
        runs = reader.ledger_runs(*days)
        context = _context(cert, ca)
        try:
            theirs = list(_read_records(records, prefix, days, context, others))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise VerbError(f"--records {records}: {type(error).__name__}: {error}") from error
        differences = list(compare(runs, theirs))
        silent = days_without_records(differences, runs)
        found += differences
    if metrics is not None:
        _write_metrics(metrics, found)
    listing = Listing(FINDINGS_SCHEMA, LEDGER_FINDING_COLUMNS, found, lambda each: each.kind.value)
    out.present(query, host, lambda: listing)
    if silent:
        out.note(f"no record at all of {', '.join(map(iso_day, silent))}: was the collector off?")
    if others:
        number = count(len(others), "record")
        out.note(
            f"{number} without the prefix `{prefix}-` are of other collectors, such as TARDIS: not compared"
        )
    if found:
        raise UnmetError(f"{month}: {count(len(found), 'difference')}")


def _context(cert: Path | None, ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert)
    except OSError as error:
        raise VerbError(f"--cert {cert}, --ca {ca}: {error}") from error
    return context


def _read_records(
    source: str, prefix: str, days: tuple[int, int], context: ssl.SSLContext, others: list[str]
) -> Iterator[AuditorRecord]:
    """Yield the records of a server, or a file, that end on the days. Add the ids of other collectors to ``others``."""
    first, end = (datetime.fromtimestamp(day * SECONDS_A_DAY, UTC) for day in days)
    if not source.startswith(("http://", "https://")):
        yield from _parsed(Path(source).read_text(encoding="utf-8"), prefix, first, end, others)
        return
    begin = first
    while begin < end:
        after = begin + timedelta(days=1)
        filters = {"stop_time[gte]": begin.isoformat(), "stop_time[lt]": after.isoformat()}
        url = f"{source.rstrip('/')}/records?{urlencode(filters)}"
        https = context if url.startswith("https") else None
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=https) as reply:
            yield from _parsed(reply.read().decode(), prefix, begin, after, others)
        begin = after


def _parsed(
    text: str, prefix: str, first: datetime, end: datetime, others: list[str]
) -> Iterator[AuditorRecord]:
    """Yield the records of a JSON array, or of lines, that end in a period."""
    found: list[Any] = (
        json.loads(text)
        if text.lstrip().startswith("[")
        else [json.loads(line) for line in text.splitlines() if line.strip()]
    )
    for each in found:
        if each["stop_time"] is None:  # TARDIS begins its record when the drone is available
            continue
        stop = datetime.fromisoformat(str(each["stop_time"]).replace("Z", "+00:00"))
        if not first <= stop < end:
            continue
        name = str(each["record_id"])
        if name.startswith(f"{prefix}-") and "#" in name:
            yield parse_record(each, prefix, int(stop.timestamp()))
        else:
            others.append(name)


def _write_metrics(path: Path, found: list[LedgerFinding]) -> None:
    lines = [
        "# HELP provisioner_accounting_findings Differences that `provisioner accounting verify` found.",
        "# TYPE provisioner_accounting_findings gauge",
    ]
    for kind in Finding:
        number = sum(each.kind is kind for each in found)
        lines.append(f'provisioner_accounting_findings{{kind="{kind.value}"}} {number}')
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
    unfinished.replace(path)


@accounting_app.command("accelerator")
@opt.shared
def accelerator(host: opt.Host, month: _Month = "") -> None:
    """Print the runs of a month as EGI's usage records of accelerators (APEL-accelerator-message 0.1, JSON).

    Nothing is sent. Names of sites are `glidein_site` of the configuration, if there is one.

    \b
    Examples:
      provisioner accounting accelerator --month 2026-11 > accelerators.json
    """
    reader = opt.open_record(host)
    wanted = month or this_month()
    days = parsed(parse_month, "--month", wanted)
    year, number = map(int, wanted.split("-"))
    views = reader.views()
    sites = {kind.site: kind.glidein_site or kind.site for kind in (views.types if views else ())}
    message = accelerator_message(reader.ledger_runs(*days, parts=True), year, number, sites)
    json.dump(message, sys.stdout, indent=1)
    sys.stdout.write("\n")
