"""The report on replays: one page that stands alone, and the same as JSON. One policy, or several side by side."""

from provisioner.simulator.report.drawing import PlotsMissing, plots_there
from provisioner.simulator.report.form import from_json, to_json
from provisioner.simulator.report.page import html_page, write_html

__all__ = ["PlotsMissing", "from_json", "html_page", "plots_there", "to_json", "write_html"]
