"""The documents as a site: Sphinx builds it without a warning, and the navigation has every page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import conf

pytestmark = pytest.mark.xdist_group("site")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a broken link, a page outside of the navigation or a mistake in markup fails."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(out / "doctrees"), str(ROOT / "docs"), str(out / "html")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_the_site_has_every_page_and_a_search_index(site: Path) -> None:
    pages = {path.relative_to(conf.DOCS) for path in conf.DOCS.rglob("*.md")}
    made = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert pages <= made
    assert "headroom" in (site / "searchindex.js").read_text()


def test_the_navigation_has_the_sections_of_the_index_in_order(site: Path) -> None:
    captions = re.findall(r'class="caption-text">([^<]+)<', (site / "index.html").read_text())
    assert captions == re.findall(r"^## (.+)", (conf.DOCS / "index.md").read_text(), re.MULTILINE)
    assert captions[0] == "Start" and captions[-1] == "Develop"


def test_links_to_files_outside_the_documents_lead_to_the_repository(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert f'href="{conf.REPOSITORY}/tree/main/site_configs/examples"' in page
    assert f'href="{conf.REPOSITORY}/blob/main/benchmarks/measurements.md"' in page


def test_a_page_outside_of_the_navigation_or_a_dead_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("# Index\n\n## Start\n\n- [A](a.md)\n")
    (tmp_path / "a.md").write_text("# A\n\n[none](b.md#nothing)\n")
    (tmp_path / "b.md").write_text("# B\n")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "dummy"]
    done = subprocess.run(
        [*command, "-c", str(conf.DOCS), str(tmp_path), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "b.md: WARNING: document isn't included in any toctree" in done.stderr
    assert "'nothing'" in done.stderr
