"""Settings of the site that `make docs` builds from these pages with Sphinx.

The pages are plain Markdown, which a forge shows as well. Three things are therefore said in the
usual words of Markdown and translated here: the lists of a page `README.md`, and those of `index.md`
below a heading, are the navigation; a link to a file outside of this folder leads to the
repository; a link to a section has the anchor that forges make of its heading.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pygments.lexers.configs import IniLexer

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from provisioner import __version__  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Source"]

project = "GPU drone provisioner"
author = "The authors of the GPU drone provisioner"
project_copyright = author
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
templates_path: list[str] = []
nitpicky = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "source_view_link": f"{REPOSITORY}/blob/main/docs/{{filename}}",
    "source_edit_link": f"{REPOSITORY}/edit/main/docs/{{filename}}",
}

FENCE = re.compile(r"^(```.*?^```)[ ]*$", re.MULTILINE | re.DOTALL)
OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)\s#]*)(#[^)\s]*)?\)")
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([\w/.-]+)\.md\)", re.MULTILINE)
SECTION = re.compile(r"^## +(.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)


def with_repository_links(text: str, folder: Path) -> str:
    """Return a page in which links to files outside of docs/ lead to the repository."""

    def replaced(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{target.relative_to(ROOT)}{link[2] or ''})"

    parts = FENCE.split(text)
    return "".join(
        part if part.startswith("```") else OUTSIDE.sub(replaced, part) for part in parts
    )


def navigation(name: str, text: str) -> Iterator[str]:
    """Yield the directives that make the lists of a page the navigation of the site."""
    if name == "index":
        sections = SECTION.findall(text)
    elif name.endswith("/README"):
        sections = [("", text)]
    else:
        return
    for caption, body in sections:
        entries = [f"{' '.join(t.split())} <{target}>" for t, target in ENTRY.findall(body)]
        options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
        if entries:
            yield "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])


def read_source(app: Any, name: str, source: list[str]) -> None:
    """Translate a page from the Markdown of a forge."""
    folder = Path(app.env.doc2path(name)).parent
    source[0] = with_repository_links(source[0], folder) + "".join(navigation(name, source[0]))


def setup(app: Any) -> dict[str, bool]:
    """Register the translation with Sphinx."""
    app.connect("source-read", read_source)
    app.add_lexer("condor", IniLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
