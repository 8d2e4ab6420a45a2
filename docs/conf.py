"""Settings of the site that `make docs` builds from these pages with Sphinx.

The pages are plain Markdown, which a forge shows as well. Three things are therefore said in the
usual words of Markdown and translated here: the lists of a page `README.md`, and those of `index.md`
below a heading, are the navigation; a link to a file outside of this folder leads to the
repository; a link to a section has the anchor that forges make of its heading.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pygments.lexers.configs import IniLexer

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from docs import openapi_page  # noqa: E402
from provisioner import __version__  # noqa: E402
from provisioner.config.schema import DOCUMENTATION, schema_address  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Source"]

project = "GPU drone provisioner"
author = "The authors of the GPU drone provisioner"
project_copyright = author
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
templates_path: list[str] = []
toc_object_entries = False
suppress_warnings = ["ref.python"]  # a field `type` beside the builtin in annotations
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_search_scorer = str(DOCS / "search_scores.js")
html_title = f"{project} {release}"
html_copy_source = False
html_show_sphinx = False
html_search_scorer = str(DOCS / "search_scorer.js")
html_theme_options = {
    "source_view_link": f"{REPOSITORY}/blob/main/docs/{{filename}}",
    "source_edit_link": f"{REPOSITORY}/edit/main/docs/{{filename}}",
}

FENCE = re.compile(r"^(```.*?^```)[ ]*$", re.MULTILINE | re.DOTALL)
OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)\s#]*)(#[^)\s]*)?\)")
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([\w/.-]+)\.md\)", re.MULTILINE)
AUTODOC = re.compile(r"^<!-- autodoc: ([\w.]+) -->$", re.MULTILINE)
AUTODOC_OPTIONS = ("members:", "undoc-members:", "exclude-members: __init__, __new__")
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
        options = [":hidden:", ":titlesonly:", *([f":caption: {caption}"] if caption else [])]
        if entries:
            yield "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])


def with_made_parts(text: str) -> str:
    """Return a page with docstrings and the web API in the place of the comments that name them."""
    options = "".join(f"   :{option}\n" for option in AUTODOC_OPTIONS)
    text = AUTODOC.sub(f"```{{eval-rst}}\n.. automodule:: \\1\n{options}```\n", text)
    return text.replace("<!-- openapi -->", openapi_page.page()) if "<!-- openapi" in text else text


def documented_modules() -> list[str]:
    """Return the modules whose docstrings are pages."""
    texts = (path.read_text() for path in sorted((DOCS / "reference/api").glob("*.md")))
    return [module for text in texts for module in AUTODOC.findall(text)]


def read_source(app: Any, name: str, source: list[str]) -> None:
    """Translate a page from the Markdown of a forge."""
    folder = Path(app.env.doc2path(name)).parent
    page = with_made_parts(source[0])
    source[0] = with_repository_links(page, folder) + "".join(navigation(name, source[0]))


def publish_schemas(app: Any, error: Exception | None) -> None:
    """Put the schemas of configuration files where their ``$id`` says: below ``schemas/VERSION``."""
    if error is None and app.builder.name == "html":
        folder = Path(app.outdir) / schema_address("x").removeprefix(f"{DOCUMENTATION}/")
        folder.parent.mkdir(parents=True, exist_ok=True)
        for name in ("controller", "site"):
            shutil.copy(DOCS / "reference" / f"{name}.schema.json", folder.parent)


def setup(app: Any) -> dict[str, bool]:
    """Register the translation with Sphinx."""
    app.connect("source-read", read_source)
    app.connect("build-finished", publish_schemas)
    app.add_lexer("condor", IniLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
