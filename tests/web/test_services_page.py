"""The pages of inference services."""

from __future__ import annotations

from pathlib import Path

from provisioner.store.reader import Reader
from tests.cli.test_services import FULL, served as served
from tests.web.test_pages import Rendered


def links_of(page: Rendered) -> dict[str, str]:
    return {"".join(each.itertext()): each.get("href", "") for each in page.root.iter("a")}


def test_services_are_a_table_that_links_to_the_page_of_each(served: Path) -> None:
    page = Rendered(Reader(served), "/services")
    heads, cms, dune = page.rows("Inference services")
    assert dict(zip(heads, cms, strict=True))["Service"] == "cms" and dune[0] == "dune"
    assert FULL.describe() in page.text and "no demand" in page.text
    assert links_of(page)["cms"] == "/services/cms"
    assert "/services" in links_of(page).values()


def test_a_service_has_its_servers_models_and_jobs(served: Path) -> None:
    page = Rendered(Reader(served), "/services/cms")
    assert "Service cms" in page.text and FULL.describe() in page.text
    assert [row[0] for row in page.rows("Servers")[1:]] == ["kit-ab12-1", "kit-ab12-2"]
    assert links_of(page)["kit-ab12-1"] == "/drone/kit-ab12-1"
    assert [row[0] for row in page.rows("Models")[1:]] == ["deepmet:3", "particlenet:1"]
    assert [row[0] for row in page.rows("Requests by VO")[1:]] == ["cms", "cms-hi"]
    assert "Service cms" in Rendered(Reader(served), "/why?q=cms").text
