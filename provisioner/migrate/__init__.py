"""Import of a COBalD/TARDIS configuration: its text in, our files as text and a finding for each key out."""

from provisioner.migrate.convert import ImportResult as ImportResult
from provisioner.migrate.convert import ImportSource as ImportSource
from provisioner.migrate.convert import convert as convert
from provisioner.migrate.report import ImportFinding as ImportFinding
from provisioner.migrate.report import ImportOutcome as ImportOutcome
