"""Import of a COBalD/TARDIS configuration: its text in, our files as text and a finding for each key out.

It opens no file itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import PurePath

from provisioner.config.strict_yaml import Position, YamlDocument
from provisioner.formatting import sanitize
from provisioner.migrate import controller
from provisioner.migrate.htcondor import HTCondorSiteImport
from provisioner.migrate.kubernetes import KubernetesSiteImport
from provisioner.migrate.openstack import OpenStackSiteImport
from provisioner.migrate.sites import EXECUTORS, ReadFile, SiteImport, drones_in, our_name, renamed
from provisioner.migrate.slurm import SlurmSiteImport
from provisioner.migrate.source import (
    CHANGED,
    DROPPED,
    NEEDED,
    ImportFinding as ImportFinding,
    ImportOutcome as ImportOutcome,
    ImportReport,
    KeyReader,
    read,
    walk,
)
from provisioner.values import frozen

_KINDS = {
    "HTCondor": HTCondorSiteImport,
    "Kubernetes": KubernetesSiteImport,
    "OpenStack": OpenStackSiteImport,
    "Slurm": SlurmSiteImport,
}
"""By TARDIS's adapters; of the options of others nothing is copied."""
_TAGS = EXECUTORS | {"PeriodicValue", "RandomGauss"}


@frozen
class ImportSource:
    """A configuration file of TARDIS or COBalD."""

    document: YamlDocument
    """Receives the problems that prevent a conversion."""
    text: str


@frozen
class ImportResult:
    files: Mapping[str, str]
    """Text by path, relative to the directory of the controller file."""
    findings: tuple[ImportFinding, ...]
    """Sorted by file and line."""

    def count(self, verdict: ImportOutcome) -> int:
        return sum(f.verdict is verdict for f in self.findings)


def convert(
    tardis: ImportSource,
    cobald: ImportSource | None = None,
    *,
    installed: Collection[str],
    read_file: ReadFile,
) -> ImportResult | None:
    """Return our files for TARDIS's; None, with problems in the documents, if theirs cannot be understood.

    ``installed``: site adapters that there are. ``read_file``: the text of a file that the
    configuration names.
    """
    reading = read(tardis.text, tardis.document)
    outer = read(cobald.text, cobald.document) if cobald is not None else None
    if reading is None or (cobald is not None and outer is None):
        return None
    notes = ImportReport(tardis.document.file)
    limit: controller.CoreLimit | None = None
    inside, oddities = reading
    root = KeyReader(inside, "", notes)
    inner = root.peek("tardis")
    # COBalD's configuration, with TARDIS's in it
    if inner and not root.peek("Sites"):
        whole = root
        inside = inner
        root = root.below("tardis")
        limit = controller.pipeline(whole)
    sites = _sites(root, tardis.document, read_file)
    if tardis.document.problems:
        return None
    if cobald is not None and outer is not None:
        section = KeyReader(outer[0], "", ImportReport(cobald.document.file, notes.found))
        if section.take("tardis"):
            section.dropped("tardis", "a TARDIS configuration of its own: import it by itself")
        limit = controller.pipeline(section)
    files = {site.file: site.text(tardis.document.file, installed) for site in sites}
    pool = controller.overlay(root.below("BatchSystem"))
    controller.plugins(root.below("Plugins"))
    most = _max_drones(limit, sites) if limit else None
    files = {
        controller.FILE: controller.controller_file(tardis.document.file, pool, list(files), most)
    } | files
    text = "give it a name: it begins each drone's id, and no two controllers share one"
    notes.add(NEEDED, 1, "", text, f"{controller.FILE}: controller")
    root.drop_rest("no site of this name is in `Sites`, and TARDIS knows no such section: left out")
    for line, oddity in oddities:
        notes.add(NEEDED, line, "", oddity)
    for value in walk(inside):
        if value.tag and value.kind not in _TAGS and not value.tag.startswith("!Tardis"):
            text = "nothing is done for a tag that TARDIS does not have: write the value"
            notes.add(NEEDED, value.line, value.tag, text)
    order = {tardis.document.file: 0} | ({cobald.document.file: 1} if cobald is not None else {})
    found = sorted(dict.fromkeys(notes.found), key=lambda f: (order.get(f.file, 2), f.file, f.line))
    return ImportResult(files, tuple(found))


def _sites(root: KeyReader, document: YamlDocument, read_file: ReadFile) -> list[SiteImport]:
    """Return the sites. Adds a problem if this is not a TARDIS configuration."""
    setting = root.take("Sites")
    if not setting.items:
        message = "missing key `Sites`: a list of sites, each with `name` and `adapter`"
        if not setting and (named := controller.tardis_file(root.peek("pipeline"))):
            theirs = sanitize(str(PurePath(document.file).parent / named), 200)
            command = f"`provisioner import {theirs} --cobald {document.file}`"
            message = f"this is COBalD's configuration, which names that of TARDIS: {command}"
        document.complain(Position(root.line_of("Sites"), 1), message)
        return []
    found: list[SiteImport] = []
    for n, one in enumerate(setting.items):
        entry = KeyReader(one, f"{root.name('Sites')}[{n}]", root.notes)
        name = entry.take("name")
        adapter = entry.take("adapter")
        if not name.text or not adapter.text:
            document.complain(
                Position(one.line, 1), "expected a mapping with `name` and `adapter`, both text"
            )
            continue
        ours = our_name(name.text, [site.name for site in found])
        kind = _KINDS.get(adapter.text, SiteImport)
        site = kind(entry, root.below(name.text), ours, adapter.text, read_file)
        found.append(site)
        entry.converted("name", f"{site.file}: site", renamed(name.text, ours))
        if not site.section.is_there:
            entry.needed("name", site.file, f"there is no section `{name.text}`")
    return found


def _max_drones(limit: controller.CoreLimit, sites: list[SiteImport]) -> tuple[int, str] | None:
    """Return ``policy.max_drones``, with a remark, for a limit in cores at all sites together."""
    cores, notes, line, key = limit
    smallest = min(
        (machine.cores for site in sites for machine in site.machines if machine.cores), default=0
    )
    if not smallest:
        notes.add(
            DROPPED,
            line,
            key,
            f"{cores:g} cores, of types of unknown size: write `policy.max_drones`",
        )
        return None
    most = drones_in(cores, smallest)
    text = f"limits count drones, not cores: {cores:g} cores are {most} of the smallest type ({smallest} cores)"
    notes.add(CHANGED, line, key, text, f"{controller.FILE}: policy.max_drones")
    return most, f"{cores:g} cores, {smallest} each"
