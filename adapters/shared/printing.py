"""Untrusted text made fit for one line of a log."""

LONGEST = 200
"""Characters of untrusted text that go on to people."""


def printable(text: str, limit: int = LONGEST) -> str:
    """Return one line of ``text`` without control characters, shortened."""
    line = "".join(c if c.isprintable() else "?" for c in text[: limit + 1].replace("\n", " "))
    return line if len(line) <= limit else line[: limit - 3] + "..."
