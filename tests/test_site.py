"""The documents as a site: Sphinx builds it without a warning, and the navigation has every page."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from docs import conf
from provisioner.config import schema
from provisioner.web import openapi

pytestmark = pytest.mark.xdist_group("site")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a broken link, a page outside of the navigation or a mistake in markup fails."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
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


def _undocumented(module: ModuleType) -> Iterator[str]:
    """Yield the public classes, functions and methods of a module that have no docstring of their own."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isclass(value):
            # a dataclass without a docstring gets its signature
            if not value.__doc__ or value.__doc__.startswith(f"{name}("):
                yield name
            for member, of in vars(value).items():
                function = of.fget if isinstance(of, property) else getattr(of, "__func__", of)
                own = getattr(function, "__module__", "") == module.__name__
                if inspect.isfunction(function) and own and not member.startswith("_"):
                    yield from [] if function.__doc__ else [f"{name}.{member}"]
        elif inspect.isfunction(value) and not value.__doc__:
            yield name


@pytest.mark.parametrize("module", conf.documented_modules())
def test_every_public_object_of_an_interface_is_documented(module: str) -> None:
    assert list(_undocumented(importlib.import_module(module))) == []


def test_pages_of_interfaces_have_their_objects(site: Path) -> None:
    model = (site / "reference/api/model.html").read_text()
    assert 'id="provisioner.model.JobClass.waits_since"' in model
    suite = (site / "reference/api/adapter-tests.html").read_text()
    assert "SiteContract.test_starting_the_same_id_again_is_the_same_drone" in suite


def test_the_page_of_the_web_api_has_every_resource_and_asks_nothing_of_others(site: Path) -> None:
    page = (site / "reference/api/web.html").read_text()
    described = openapi.document()
    for path, operations in described["paths"].items():
        for method in operations:
            assert f"{method.upper()} {path}" in re.sub("<[^>]+>", "", page)
    for name in described["components"]["schemas"]:
        assert f'href="#{name.lower()}"' in page
    assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?:', page)


def test_schemas_are_published_at_the_address_that_they_name(site: Path) -> None:
    for name in ("controller", "site"):
        path = schema.schema_address(name).removeprefix(f"{schema.DOCUMENTATION}/")
        assert json.loads((site / path).read_text())["$id"] == schema.schema_address(name)


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
