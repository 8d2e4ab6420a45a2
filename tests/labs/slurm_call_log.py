"""Slurm's tools of the lab with each call of them written down: which it was, how long its answer, its words."""

from __future__ import annotations

from dataclasses import dataclass

from tests.labs.slurm import TOOLS, SlurmLab

NOTED = """\
#!/bin/sh
# As {tool}, and a line about each call.
out=$(mktemp -p {directory}) || exit 70
trap 'rm -f "$out"' EXIT
{tool} "$@" >"$out"
code=$?
echo "{name} $(wc -c <"$out") $*" >>{calls}
cat "$out"
exit $code
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one tool that came to its end."""

    tool: str
    answer: int
    """Bytes."""
    words: tuple[str, ...]
    """Its arguments, cut at blanks."""

    @property
    def tasks(self) -> int:
        """Of an ``sbatch``: how many jobs it asks for."""
        arrays = [word.removeprefix("--array=") for word in self.words if word.startswith("--array=")]
        spans = [part.partition("-") for array in arrays for part in array.split(",")]
        return sum(int(last or first) - int(first) + 1 for first, _, last in spans) if arrays else 1


class CountedTools:
    """A directory of such tools, for a site's option ``tools: {bin: ...}``. It goes with the cluster's."""

    def __init__(self, lab: SlurmLab) -> None:
        self.directory = lab.root / "counted"
        self.directory.mkdir()
        self._calls = self.directory / "calls"
        self._calls.touch()
        for name in TOOLS:
            file = self.directory / name
            script = NOTED.format(tool=lab.tools / name, name=name, directory=self.directory, calls=self._calls)
            file.write_text(script)
            file.chmod(0o755)

    def calls(self, after: int = 0) -> list[Call]:
        """All of them, without the first ``after``."""
        lines = self._calls.read_text(errors="replace").splitlines()[after:]
        rows = [line.split() for line in lines]
        return [Call(tool, int(answer), tuple(words)) for tool, answer, *words in rows]
