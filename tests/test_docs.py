"""The documents tell the truth: links lead somewhere, commands and options exist, examples run, configurations check.

Three kinds of fenced blocks are tried. ``console``: every ``$ provisioner ...`` line is run, in
order, in the directory that a demo has left behind, with its configuration and its record; text
below a line is what it must print, with ``...`` for anything. ``yaml`` that begins with a comment
naming a file: the files of a document are written out and go through `provisioner check`. ``sh``:
not run, but each ``provisioner`` command in it must exist.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from string import Formatter
from textwrap import dedent
from typing import Any

import pytest
import typer

from docs import make_reference
from provisioner import __version__, reasons
from provisioner.answers import QUESTIONS, columns, load_question
from provisioner.answers.events import EVENT_SENTENCES
from provisioner.cli.__main__ import VERBS
from provisioner.config import schema
from provisioner.web import pages
from provisioner.web.api import CHANGE_RESOURCES
from tests.cli import test_tables

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "site_configs").rglob("*.md")],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
OTHER_TOOLS = {"systemctl", "install"}
EXIT = re.compile(r"\s*#\s*exit (\d+)\s*$")


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, kind: str) -> list[str]:
    return [body for name, body in FENCE.findall(page.read_text()) if name == kind]


def links(page: Path) -> list[str]:
    return LINK.findall(FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """Anchors as the usual renderers make them from headings."""
    prose = FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ +(.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# -------------------------------------------------------------------------------------------------------------
# links


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    dead = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        there = path.is_relative_to(ROOT) and path.exists()
        if not there or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            dead.append(target)
    assert dead == []


def test_every_page_can_be_reached_from_the_index() -> None:
    seen = {ROOT / "README.md", ROOT / "docs" / "index.md"}
    ahead = list(seen)
    while ahead:
        page = ahead.pop()
        paths = {(page.parent / target.partition("#")[0]).resolve() for target in links(page)}
        new = {path for path in paths - seen if path.suffix == ".md" and path.is_file()}
        seen |= new
        ahead += new
    assert [page_id(page) for page in PAGES if page not in seen] == []


SITE_GUIDES = ("htcondor-cluster", "kubernetes", "openstack", "slurm", "this-host", "through-a-ce")
STEPS = ["What you need", "1. Get", "2. Configure", "3. Check", "4. First drone", "Stop", "Errors"]


@pytest.mark.parametrize("name", SITE_GUIDES)
def test_all_site_guides_have_the_same_steps(name: str) -> None:
    text = FENCE.sub("", (ROOT / "docs" / "how-to" / f"{name}.md").read_text())
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    steps = [step for title in titles for step in STEPS if title.startswith(step)]
    assert steps == STEPS
    common = (ROOT / "docs" / "how-to" / "first-drone.md").read_text()
    assert f"({name}.md)" in common


def test_one_page_has_the_rank_of_slots_for_the_negotiator() -> None:
    """Two pages had different ones, and the second lost what the first kept of HTCondor's default."""
    lines = [
        line
        for page in PAGES
        for line in page.read_text().splitlines()
        if line.startswith("NEGOTIATOR_PRE_JOB_RANK =")
    ]
    assert len(lines) == 1
    assert "My.Rank" in lines[0]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """The lists of the index, and of README pages, are the navigation (`docs/conf.py`)."""
    docs = ROOT / "docs"
    listed = {
        (page.parent / target).resolve()
        for page in [docs / "index.md", *docs.rglob("README.md")]
        for target in re.findall(r"^- \[[^\]]+\]\(([^)\s#]+\.md)\)", page.read_text(), re.MULTILINE)
    }
    pages = [page for page in PAGES if page.is_relative_to(docs) and page != docs / "index.md"]
    assert [page_id(page) for page in pages if page not in listed] == []


# ----------------------------------------------------------------------------------------------------------
# length

WORDS = 66_200
WORDS_FOR_OPERATORS = 28_200
WORDS_OF_A_HOW_TO = 1_280
WORDS_OF_THE_GENERATED_REFERENCE = 16_800
"""Limits of the documents: a page that grows makes another one shorter. Lower them when pages shrink."""


def word_count(pages: Iterable[Path]) -> int:
    """Count the words of pages with all code; bars of tables and marks of lists are none."""
    return sum(bool(re.search(r"\w", word)) for page in pages for word in page.read_text().split())


def test_the_documents_are_short_enough_to_find_something() -> None:
    docs = ROOT / "docs"
    assert word_count(docs.rglob("*.md")) <= WORDS
    sections = (docs / "index.md").read_text().partition("## Reference")[0]
    of_operators = set(re.findall(r"^- \[[^\]]+\]\(([^)\s#]+\.md)\)", sections, re.MULTILINE))
    assert word_count(docs / name for name in of_operators) <= WORDS_FOR_OPERATORS
    for page in (docs / "how-to").glob("*.md"):
        assert word_count([page]) <= WORDS_OF_A_HOW_TO, page
    made = [
        docs / "reference" / f"{name}.md" for name in ("cli", "reasons", "log-events", "metrics")
    ]
    made += (docs / "reference/configuration").glob("*.md")
    assert word_count(made) <= WORDS_OF_THE_GENERATED_REFERENCE


# ----------------------------------------------------------------------------------------------------------
# commands


def shell_lines(page: Path) -> Iterator[str]:
    for kind in ("console", "sh"):
        for body in blocks(page, kind):
            for line in body.splitlines():
                if kind == "sh" or line.startswith("$ "):
                    yield line.removeprefix("$ ")


def mentions(page: Path) -> Iterator[list[str]]:
    """Every ``provisioner ...`` in shell blocks and in inline code."""
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text()))
    for line in [*shell_lines(page), *inline]:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        for at, word in enumerate(words):
            if word.rpartition("/")[2] == "provisioner" and at + 1 < len(words) and "=" not in word:
                if at and (words[at - 1].startswith("-") or not OTHER_TOOLS.isdisjoint(words[:at])):
                    continue  # the account, the unit or a file of that name
                yield words[at:]
                break


def command_tree() -> Any:
    """The command as typer builds it; whose ``click`` that is depends on its version."""
    from provisioner.cli.__main__ import app

    return typer.main.get_command(app)


def sub_command(command: Any, name: str) -> Any:
    context = command.make_context("x", [], resilient_parsing=True)
    return command.resolve_command(context, [name])[1]


def unknown_in(mention: Sequence[str], root: Any) -> str:
    """The first word of a command line that does not exist, else nothing."""
    command, words = root, iter(mention[1:])
    for word in words:
        if word in {"...", "|", "||", ">", "&&", "--"}:
            break
        if word.startswith("-"):
            option, equals, _ = word.partition("=")
            known = [p for p in command.params if option in (*p.opts, *p.secondary_opts)]
            if not known and option not in {"--help", "-h"}:
                return option
            if known and not known[0].is_flag and not equals:
                next(words, None)
        elif hasattr(command, "get_command"):
            found = sub_command(command, word)
            if found is None:
                return word
            command = found
        elif not any(param.param_type_name == "argument" for param in command.params):
            return word
    return ""


def wrong_in(found: Iterable[Sequence[str]]) -> list[str]:
    root = command_tree()
    return [f"{' '.join(words)} ({bad})" for words in found if (bad := unknown_in(words, root))]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_and_option_exists(page: Path) -> None:
    assert wrong_in(mentions(page)) == []


def test_the_service_unit_and_shipped_configurations_name_commands_that_exist() -> None:
    """A header said `provisioner run PATH` when `run` took no path."""
    text = (ROOT / "packaging" / "systemd" / "provisioner.service").read_text()
    lines = [line.partition("=")[2] for line in text.splitlines() if line.startswith("Exec")]
    lines += re.findall(r"`(provisioner [^`]*)`", text)
    assert len(lines) >= 3
    for path in sorted((ROOT / "site_configs").rglob("*.yaml")):
        lines += re.findall(r"^# +(provisioner [^`\n]*)$", path.read_text(), re.MULTILINE)
    assert wrong_in(shlex.split(line) for line in lines if "provisioner " in line) == []


# ----------------------------------------------------------------------------------------------------------
# examples


def provisioner(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PROVISIONER_")}
    return subprocess.run(
        [sys.executable, "-m", "provisioner.cli", *words],
        cwd=cwd,
        env=env | {"NO_COLOR": "1", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def examples(page: Path) -> list[tuple[str, int, str]]:
    """Lines to run, the exit code each must have, and the output it must have (empty: any)."""
    found: list[tuple[str, int, str]] = []
    for body in blocks(page, "console"):
        for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
            code = EXIT.search(line)
            found.append((EXIT.sub("", line), int(code[1]) if code else 0, output))
    return found


def matches(wanted: str, got: str) -> bool:
    """Compare line by line; ``...`` stands for anything within a line, alone on a line for any lines."""

    def squeezed(text: str) -> str:
        return re.sub(r"[ \t]+", " ", text.strip())

    parts = re.split(r"(\.\.\.)", squeezed(wanted))
    pattern = "".join(".*" if part == "..." else re.escape(part) for part in parts)
    return re.fullmatch(pattern, squeezed(got), re.DOTALL) is not None


def with_examples() -> list[Path]:
    """All but the generated reference: its examples are those of the help texts, about a pool that is not here."""
    return [page for page in PAGES if examples(page) and page.parent.name != "reference"]


@pytest.mark.slow
@pytest.mark.xdist_group("demo")
@pytest.mark.parametrize("page", with_examples(), ids=page_id)
def test_the_examples_run(page: Path, lived: Path) -> None:
    for command, exit_code, output in examples(page):
        words = shlex.split(command)
        assert words[0] == "provisioner", f"only provisioner is run from documents: {command}"
        done = provisioner(words[1:], lived)
        assert done.returncode == exit_code, f"$ {command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        if output:
            assert matches(output, done.stdout), (
                f"$ {command}\nwanted:\n{output}\ngot:\n{done.stdout}"
            )


def named_files(page: Path) -> dict[str, str]:
    """YAML blocks whose first line is a comment that names a file."""
    found = {}
    for body in blocks(page, "yaml"):
        first = re.match(r"# ([\w./-]+\.yaml)\b", body)
        if first:
            found[first[1]] = body
    return found


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "provisioner.yaml" in named_files(p)], ids=page_id
)
def test_configurations_in_documents_are_valid(page: Path, tmp_path: Path) -> None:
    for name, body in named_files(page).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
    for name in ("controller.token", "drone.token"):
        (tmp_path / name).write_text("e30.eyJpc3MiOiAicG9vbCIsICJzdWIiOiAieEBwb29sIn0.c2ln")
        (tmp_path / name).chmod(0o400)
    assert_valid(provisioner(["check", "-c", "provisioner.yaml"], tmp_path))


def assert_valid(done: subprocess.CompletedProcess[str]) -> None:
    """Assert that there is no mistake; a type may be too large for the host of this test."""
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize(
    "path", sorted((ROOT / "site_configs").rglob("provisioner.yaml")), ids=page_id
)
def test_shipped_configurations_are_valid(path: Path) -> None:
    assert_valid(provisioner(["check", "-c", str(path)], ROOT))


def test_paths_in_docs_and_docstrings_exist() -> None:
    texts = {page: page.read_text() for page in PAGES}
    texts |= {
        file: file.read_text()
        for top in ("provisioner", "adapters")
        for file in (ROOT / top).rglob("*.py")
    }
    named = re.compile(
        r"`((?:provisioner|adapters|tests|benchmarks|docs|planner|controller|simulator)/[\w./-]+\.\w+)`"
    )
    missing = [
        f"{place.relative_to(ROOT)}: {path}"
        for place, text in texts.items()
        for path in named.findall(text)
        if not (ROOT / path).exists() and not (ROOT / "provisioner" / path).exists()
    ]
    assert missing == []


def test_the_example_of_a_simulation_runs() -> None:
    (example,) = blocks(ROOT / "docs" / "internals" / "simulator.md", "python")
    known: dict[str, object] = {}
    exec(compile(example, "simulator.md", "exec"), known)
    assert "outcome" in known


# ---------------------------------------------------------------------------------------------------------
# reference


def test_the_reference_is_as_the_code_makes_it() -> None:
    assert not make_reference.stale_files(), "renew them: python -m docs.make_reference"


def test_a_check_of_the_reference_names_stale_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = tmp_path / "reference"
    reference.mkdir()
    assert make_reference.main([str(reference)]) == 0
    assert make_reference.main([str(reference), "--check"]) == 0
    (reference / "cli.md").unlink()
    (reference / "reasons.md").write_text("old")
    (reference / "configuration/site-of-old.md").write_text("of an adapter that is gone")
    assert make_reference.main([str(reference), "--check"]) == 1
    stale = re.findall(r"([\w.-]+): stale", capsys.readouterr().out)
    assert stale == ["site-of-old.md", "cli.md", "reasons.md"]


def test_each_reason_that_jobs_wait_for_says_what_to_do() -> None:
    jobs_wait = [
        category
        for category in reasons.Category
        if category not in (reasons.Category.START, reasons.Category.LEAVE, reasons.Category.STEP)
    ]
    waiting = {e.kind for e in make_reference.REASON_EXAMPLES if e.category in jobs_wait}
    of_actions = {"invalid-action", "unknown-drone", "not-draining", "orphans-kept", "live-twin"}
    assert set(make_reference.REMEDIES) == waiting - of_actions


def test_the_help_names_every_verb_that_reads_the_record_alone() -> None:
    listed = re.search(r"controller is down: ([^.]*)\.", command_tree().help)
    assert listed is not None
    named = {name.split()[0] for name in re.split(r", | and ", " ".join(listed[1].split()))}
    assert {verb.split()[0] for verb in QUESTIONS} <= named <= set(VERBS)


def test_the_layers_of_the_architecture_name_every_package() -> None:
    named = {name for layer in make_reference.layers() for name in layer}
    packages = {
        f"provisioner.{path.parent.name}" for path in (ROOT / "provisioner").glob("*/__init__.py")
    }
    assert packages - named == {
        "provisioner.drone"
    }  # no package imports it: it runs on worker nodes


def test_a_file_below_etc_finds_its_schema() -> None:
    """The modeline has the address of the schema, which the schema says is its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Documentation"] == schema.DOCUMENTATION
    published = {
        json.loads(path.read_text())["$id"]
        for path in (ROOT / "docs/reference").glob("*.schema.json")
        if path.stem in ("controller.schema", "site.schema")
    }
    assert published == {schema.schema_address("controller"), schema.schema_address("site")}
    for path in (ROOT / "site_configs").rglob("*.yaml"):
        for address in re.findall(r"^# yaml-language-server: \$schema=(.*)", path.read_text()):
            assert address in published, path


LOGGING_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


def _names_in(source: str) -> Iterator[str]:
    """Yield the literal event names of all log calls in ``source``."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        function = call.func
        logs = isinstance(function, ast.Name) and function.id in (
            "tell",
            "read_store",
            "write_store",
        )
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            logs |= function.value.id == "log" and function.attr in LOGGING_METHODS
        if isinstance(function, ast.Attribute):
            logs |= function.attr in ("event", "_event")
        if logs:
            constants = (each for each in ast.walk(call.args[0]) if isinstance(each, ast.Constant))
            yield from (each.value for each in constants if isinstance(each.value, str))


PROCESS_MODULES = ("app", "controller_process", "shared_configuration", "reloading")
CONTROLLER_SOURCES = (
    *(ROOT / "provisioner" / f"{name}.py" for name in PROCESS_MODULES),
    *(ROOT / "provisioner" / "controller").glob("*.py"),
)


def test_the_list_of_log_events_is_complete() -> None:
    sources = [*CONTROLLER_SOURCES]
    sources += [*(ROOT / "adapters").rglob("*.py"), *(ROOT / "provisioner" / "web").glob("*.py")]
    logged = {name for path in sources for name in _names_in(path.read_text())}
    logged.add("request.recorded")  # by the store, with the request itself
    page = (ROOT / "docs" / "reference" / "log-events.md").read_text()
    documented = re.findall(r"^- `([^`]+)` \(", page, re.MULTILINE)
    assert sorted(documented) == sorted(logged)
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", name) for name in logged)


def _fields_of_events(source: str) -> Iterator[tuple[str, set[str | None]]]:
    """Yield the names of recorded events and the fields that they are recorded with."""
    for call in ast.walk(ast.parse(source)):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        if call.func.attr == "event":
            fields = {each.arg for each in call.keywords}
            constants = (each for each in ast.walk(call.args[0]) if isinstance(each, ast.Constant))
            yield from ((each.value, fields) for each in constants if isinstance(each.value, str))


def test_each_recorded_event_has_a_sentence_with_fields_that_it_has() -> None:
    sources = [*CONTROLLER_SOURCES]
    recorded = dict(each for path in sources for each in _fields_of_events(path.read_text()))
    recorded["request.recorded"] = {"request", "kind", "by", "reason", "of"}  # by the store
    recorded["config.reloaded"].add("changes")
    page = (ROOT / "docs" / "reference" / "log-events.md").read_text()
    documented = re.findall(r"^- `([^`]+)` \([a-z, ]+, recorded\)", page, re.MULTILINE)
    assert set(documented) == set(recorded) == set(EVENT_SENTENCES)
    for name, sentence in EVENT_SENTENCES.items():
        fields = {field for _, field, _, _ in Formatter().parse(sentence) if field}
        assert fields <= recorded[name], name


def _addresses(section: str, pattern: str) -> set[str]:
    """Return the addresses in the first column of the tables of a section about the web service."""
    page = (ROOT / "docs" / "how-to" / "web-service.md").read_text()
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\|([^|]+)\|", text, re.MULTILINE)
    return {each for cell in found for each in re.findall(pattern, cell)}


def test_the_pages_of_the_web_service_are_listed() -> None:
    known = {f"/{name}" for name in pages.PAGES} | {f"/{name}/" for name in pages.PAGES_OF_ONE}
    assert _addresses("Pages", r"`(/[a-z]*/?)(?:ID|NAME|\?q=ID)?`") == known


def test_the_resources_of_the_web_service_are_listed() -> None:
    paths = {load_question(words).path for words in QUESTIONS}
    paths |= {change.path for change in CHANGE_RESOURCES}
    others = {"/events/stream", "/schemas", "/openapi.json"}
    listed = _addresses("API", r"`(/[a-z/.-]+(?:(?:ID|NAME)[a-z/-]*)?)`")
    assert {re.sub("ID|NAME", "{id}", path) for path in listed} - others == paths


def test_each_decision_has_a_status_and_a_date() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    status = re.compile(
        r"^# \d{4} .+\n\nStatus: (accepted|superseded by \d{4})\. Date: \d{4}-\d\d-\d\d"
    )
    assert len(pages) > 10
    assert [page.name for page in pages if not status.match(page.read_text())] == []


def test_each_test_that_the_page_about_security_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 20
    missing = [
        f"{file}::{test}" for file, test in named if f"def {test}(" not in (ROOT / file).read_text()
    ]
    assert not missing


def test_nobody_is_told_to_install_a_name_that_is_not_registered() -> None:
    """Whoever registers the name would be installed on the controller's host."""
    files = [
        *PAGES,
        *(f for top in ("provisioner", "adapters") for f in (ROOT / top).rglob("*.py")),
    ]
    by_name = re.compile(r"pip3? install\b[^`\n]*[\s'\"]gpu-drone-provisioner(?![/\w])")
    assert [page_id(file) for file in files if by_name.search(file.read_text())] == []


def test_the_table_of_extras_has_each_extra_that_an_operator_installs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    listed = re.findall(r"^\| `([a-z-]+)` \|", page.partition("### Extras")[2], re.MULTILINE)
    assert sorted(listed) == sorted(extras)


def test_the_status_of_the_project_is_one_story() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "Development Status :: 3 - Alpha" in project["classifiers"]
    changes = (ROOT / "CHANGELOG.md").read_text()
    for text in (changes, *((ROOT / page).read_text() for page in ("README.md", "SECURITY.md"))):
        assert f"{__version__} is in development" in text
    versions = re.findall(r"^## \[(.*)$", changes, re.MULTILINE)
    undated = [each for each in versions if not re.search(r" - \d{4}-\d\d-\d\d$", each)]
    assert undated == [f"{__version__}] - unreleased"]


def test_the_first_change_and_its_test_work(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "how-to" / "first-change.md").read_text()
    test, column = map(dedent, re.findall(r"^ *```python\n(.*?)^ *```", text, re.DOTALL | re.M))
    (name,) = re.findall(r"def (\w+)", test)
    names = dict(vars(test_tables))
    exec(test, names)
    with pytest.raises(KeyError, match="asked"):
        names[name]()
    added = eval(column, vars(columns))
    monkeypatch.setattr(test_tables, "DRONE_COLUMNS", (*test_tables.DRONE_COLUMNS, added))
    names[name]()
