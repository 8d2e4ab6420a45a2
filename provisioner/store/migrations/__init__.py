"""Schema migrations, and what can be known of them without importing alembic."""

from __future__ import annotations

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0010")
"""All revisions, oldest first. A test compares them with the scripts in ``versions/``."""

HEAD = REVISIONS[-1]
"""The schema that this version of the program reads and writes."""
