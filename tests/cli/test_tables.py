"""Tables fit 100 columns whatever is in them; machine formats are never shortened and never coloured."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings, strategies as st

from provisioner import model as m
from provisioner.answers.columns import Column, Listing
from provisioner.answers.demand import CLASS_COLUMNS, ClassRow
from provisioner.answers.drones import DRONE_COLUMNS
from provisioner.answers.events import EVENT_COLUMNS, Happening
from provisioner.answers.files import PROBE_COLUMNS, Probe
from provisioner.answers.forms import Page, shorten, table_lines, text_width, write
from provisioner.answers.plan import PLAN_COLUMNS, PlanRow
from provisioner.answers.query import Format, Query
from provisioner.answers.sites import SITE_COLUMNS, SiteRow, site_document
from provisioner.planner.matching import compatibility_cache
from provisioner.reasons import BadRequest
from provisioner.store import Hazard

WIDTH = 100
NOW = 1.8e9
TEXT = st.text(max_size=300)
NAME = st.text(
    st.characters(categories=("L", "N"), include_characters="-"), min_size=1, max_size=80
)
COUNT = st.integers(0, 999_999)
AT = st.floats(1.7e9, NOW) | st.just(0.0)

DRONES = st.builds(
    m.Drone,
    id=NAME,
    type=st.builds("{}/{}".format, NAME, NAME),
    state=st.sampled_from(m.DroneState),
    leaving=st.sampled_from(m.DroneState) | st.none(),
    **dict.fromkeys(
        ("since", "requested_at", "missing_at", "unslotted_at", "notice_at", "work_at"), AT
    ),
    **dict.fromkeys(("for_class", "remote_id", "node", "site_slot", "slot", "site_reason"), TEXT),
    **dict.fromkeys(("gpu_milli", "jobs", "asked"), COUNT),
)
COUNTED = ("gpu_milli", "cpus", "memory_mib", "vram_mib", "waiting", "running")
JOBS = st.builds(
    m.JobClass, id=NAME, owner=TEXT, oldest_at=AT, job_ids=TEXT, **dict.fromkeys(COUNTED, COUNT)
)
REASONS = st.lists(st.builds(BadRequest, TEXT), max_size=2).map(tuple)
NAMES = st.lists(NAME, max_size=9).map(tuple)
LARGE = dict.fromkeys(("gpu_milli", "cpus", "memory_mib", "vram_mib"), st.just(10**9))
TYPES = st.lists(st.builds(m.DroneType, site=NAME, name=NAME, **LARGE), max_size=9)


def class_row(
    job: m.JobClass,
    name: str,
    short_id: str,
    reasons: tuple[BadRequest, ...],
    drones: int,
    types: list[m.DroneType],
) -> ClassRow:
    compatible = compatibility_cache(tuple(types), m.Policy()).table([job])
    return ClassRow(job, name, short_id, reasons, drones, lambda: compatible)


CLASSES = st.builds(class_row, job=JOBS, reasons=REASONS, types=TYPES, drones=COUNT)
FAULTS = st.builds(m.Fault, st.sampled_from(m.FaultKind), TEXT, AT)
NODES = st.builds(m.Node, NAME, st.just(("a100",)), *[COUNT] * 8)
CLAIMS = st.builds(m.OwnerDemand, COUNT, COUNT, COUNT, COUNT, AT, nodes=NAMES, who=TEXT)
SPAN, SUM = st.none() | st.floats(0, 1e8), st.floats(0, 1e9)
HAZARDS = st.builds(Hazard, NAME, COUNT, SUM, COUNT, SPAN, SPAN, SPAN, SUM, SUM, COUNT)
VIEWS = st.builds(
    m.SiteView,
    NAME,
    AT,
    free=st.dictionaries(NAME, COUNT, max_size=4),
    nodes=st.lists(NODES, max_size=2).map(tuple),
    claims=st.lists(CLAIMS, max_size=2).map(tuple),
    owner_runs=st.none() | st.builds(m.OwnerLoad, COUNT, COUNT),
)
SITES = st.builds(
    SiteRow,
    name=NAME,
    policy=st.builds(m.SitePolicy, site=NAME, max_drones=COUNT) | st.none(),
    reading=st.builds(m.PolledSite, NAME, VIEWS, FAULTS | st.none()),
    breaker=st.builds(
        m.Breaker, st.builds(m.Scope, NAME), st.sampled_from(m.BreakerState), fault=FAULTS
    ),
    type_breakers=st.just(()),
    states=st.dictionaries(st.sampled_from(m.DroneState), COUNT),
    gpu_milli=COUNT,
    hazard=st.none() | HAZARDS,
)
ACTIONS = st.sampled_from(["start", "stop-orphan"])
PLANS = st.builds(PlanRow, ACTIONS, TEXT, COUNT, st.none(), TEXT, NAMES)
PROBES = st.builds(
    Probe, NAME, st.booleans(), TEXT, st.sampled_from(["", "cpus", "preemption"]), NAMES
)
HAPPENINGS = st.tuples(AT, st.just("event"), TEXT, TEXT).map(lambda event: Happening(*event))


def _fits(columns: tuple[Column, ...], rows: list[Any]) -> None:
    shown = [c for c in columns if c.level == 0]
    for line in table_lines(shown, rows, Page(WIDTH, False)):
        assert text_width(line) <= WIDTH, line
        assert line.isprintable()


@pytest.mark.parametrize(
    ("strategy", "columns"),
    [
        (DRONES, DRONE_COLUMNS),
        (CLASSES, CLASS_COLUMNS),
        (SITES, SITE_COLUMNS),
        (PROBES, PROBE_COLUMNS),
        (PLANS, PLAN_COLUMNS),
        (HAPPENINGS, EVENT_COLUMNS),
    ],
    ids=["drones", "classes", "sites", "looks and gaps", "plans", "events"],
)
@settings(deadline=None)
@given(st.data())
def test_a_table_fits_100_columns(
    strategy: st.SearchStrategy[Any], columns: tuple[Column, ...], data: st.DataObject
) -> None:
    _fits(columns, data.draw(st.lists(strategy, max_size=5)))


@settings(deadline=None)
@given(SITES, st.lists(HAZARDS, max_size=3))
def test_a_site_in_full_fits_100_columns(row: SiteRow, hazards: list[Hazard]) -> None:
    document = site_document(row, (), hazards, "")
    for part in document.parts.values():
        _fits(tuple(part.columns), list(part.rows))


@example("0\x1f000\xa0", 4, False)  # a control character beside a wide one
@given(st.text(max_size=60), st.integers(4, 60), st.booleans())
def test_a_shortened_text_takes_no_more_than_its_room(text: str, width: int, tail: bool) -> None:
    assert text_width(shorten(text, width, tail=tail)) <= width


EVIL = replace(
    m.Drone(m.DroneId("kit-ab12-1"), m.TypeKey("topas/a100"), m.DroneState.IDLE, 1.0, 1.0, 1000),
    slot="slot1@\x1b[31mevil\x1b[0m\n",
    site_reason="x" * 5000 + '",\x00\u202e',
    remote_id="=cmd|' /C calc'!A1",
)


def _written(output: Format, rows: list[m.Drone], **more: Any) -> str:
    listing = Listing("provisioner.drones/1", DRONE_COLUMNS, rows, lambda d: d.id, "")
    out = io.StringIO()
    write(listing, Query(output=output, **more), Page(WIDTH, False), out)
    return out.getvalue()


@pytest.mark.parametrize("output", Format)
def test_no_form_of_output_lets_a_control_sequence_through(output: Format) -> None:
    text = _written(output, [EVIL])
    assert "\x1b" not in text and "\x00" not in text and "\u202e" not in text


def test_machine_formats_are_complete() -> None:
    for text in (
        _written(Format.JSON, [EVIL]),
        _written(Format.JSONL, [EVIL]),
        _written(Format.YAML, [EVIL]),
    ):
        tree = yaml.safe_load(text)
        item = tree["items"][0] if "items" in tree else tree
        assert item["site_reason"] == EVIL.site_reason
        assert item["slot"] == EVIL.slot
        assert item["remote_id"] == EVIL.remote_id
    (row,) = csv.DictReader(io.StringIO(_written(Format.CSV, [EVIL])))
    assert row["site_reason"].startswith("x" * 5000)


def test_colour_never_changes_the_text() -> None:
    columns = [c for c in DRONE_COLUMNS if c.level == 0]
    failed = replace(EVIL, state=m.DroneState.FAILED)
    plain = table_lines(columns, [failed], Page(WIDTH, False))
    painted = table_lines(columns, [failed], Page(WIDTH, True))
    assert "\x1b[31mfailed" in painted[1]
    stripped = [
        line.replace("\x1b[31m", "").replace("\x1b[1m", "").replace("\x1b[0m", "").rstrip()
        for line in painted
    ]
    assert stripped == plain


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        ("gpu1.example.org", "gpu1"),
        ("10.0.0.1", "10.0.0.1"),
        ("gpu1.example.org/gpu.shared", "gpu1/gpu.shared"),
    ],
)
def test_a_node_is_shown_without_its_domain(node: str, shown: str) -> None:
    (column,) = [each for each in DRONE_COLUMNS if each.key == "node"]
    assert column.show is not None
    drone = m.Drone(
        m.DroneId("kit-1"), m.TypeKey("cern/a100"), m.DroneState.BUSY, NOW, NOW, 1000, node=node
    )
    assert column.show(drone) == shown
