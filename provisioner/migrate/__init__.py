"""A COBalD/TARDIS configuration turned into ours: text in, our files as text and a finding for each key out."""

from provisioner.migrate.convert import Converted as Converted
from provisioner.migrate.convert import Source as Source
from provisioner.migrate.convert import convert as convert
from provisioner.migrate.findings import Finding as Finding
from provisioner.migrate.findings import Verdict as Verdict
