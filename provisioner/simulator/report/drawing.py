"""Matplotlib behind one function: paints a figure, and gives it as SVG text fit to stand inside a page or alone."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#010203"
"""Becomes the colour of the text around: dark on light, light on dark. No other colour may be this one."""
STYLE: dict[str, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "grid.alpha": 0.2,
    "grid.color": INK,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: to be searched, read aloud and set in the reader's font
    "text.color": INK,
    "text.parse_math": False,  # names may have dollar signs
    "xtick.color": INK,
    "ytick.color": INK,
}
SCHEMES = (
    "svg.plot{color:#1c2127}svg.plot *{stroke-linejoin:round;stroke-linecap:butt}"
    "@media screen and (prefers-color-scheme:dark){svg.plot{color:#dfe3e8}}"
)


class PlotsMissing(RuntimeError):
    """The plotting library is not installed; the text says how to get it."""

    def __init__(self) -> None:
        super().__init__(
            "the report's plots need the Python package matplotlib: pip install 'gpu-drone-provisioner[report]'"
        )


def plots_there() -> None:
    """Raises PlotsMissing if no plot can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise PlotsMissing from None


def svg(title: str, told: str, paint: Callable[[Figure], None], *, height: float, width: float = 7.4) -> str:
    """What ``paint`` puts on a figure of so many inches. ``told`` says in words what is to be seen.

    The text is the same for the same input, whatever the user's own settings of matplotlib are.
    """
    plots_there()
    import matplotlib
    from matplotlib.figure import Figure

    page = io.StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        # Only the layout suffers: the reader's browser has the glyph.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        matplotlib.rcdefaults()
        # Ids come from the salt and the content: those of two plots in one page differ, or mean the same.
        settings: Any = matplotlib.rcParams
        settings.update({**STYLE, "svg.hashsalt": title})
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(page, format="svg", transparent=True, metadata=nothing)
    return _tidied(page.getvalue(), title, told)


def _tidied(text: str, title: str, told: str) -> str:
    """From ``<svg`` on, with words for those who do not see it, and without what only costs room."""
    text = text[text.index("<svg") :].replace(INK, "currentColor").strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*|<style type=.*?</style>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    told = escape(told)
    words = f"<title>{escape(title)}</title>\n<desc>{told}</desc>\n<style>{SCHEMES}</style>"
    return re.sub(
        r"<svg ([^>]*)>",
        lambda tag: f'<svg class="plot" role="img" aria-label="{escape(title)}. {told}" {tag[1]}>\n{words}',
        text,
        count=1,
    )
