"""State in notebooks: all names are escaped, the size is bounded, and no colours are fixed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from snapshots.compatibility import CompatibilityIssue, CompatibilityKind, FieldCompatibility
from statebackend import MapStateDescriptor, Savepoint, ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.savepoint.html_pages import table_fragment
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.state.state_compatibility import SchemaReport, StateCompatibility
from statebackend.streaming.compatibility_check import SchemaReports
from statebackend.streaming.observing.job_recorder import RestoredStateReport, RestoreReport

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></table><b>",
    "[bold red]a[/] [link=http://x]",
    "two\nlines\tand \x1b[2J",
    "&lt;already&gt;",
    "\u202eturned round",
    "x" * 5_000,
]


class Seen(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def check_harmless(page: str) -> str:
    """The text of a fragment, which must be a table of bounded size without colours."""
    seen = Seen(page)
    assert seen.elements <= {"table", "caption", "b", "thead", "tbody", "tfoot", "tr", "th", "td"}
    assert seen.attributes <= {"style", "colspan"}
    assert "color" not in page
    assert "background" not in page
    assert all(one.isprintable() for one in seen.text)
    return seen.text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_shown_and_not_executed(name: str) -> None:
    shown = check_harmless(table_fragment(name, [name], [[name, None, 3]]))
    if name.isprintable() and len(name) < 100:
        assert shown.count(name) == 3
    assert len(shown) < 3 * 600


def test_the_first_of_many_rows_are_shown_and_the_others_counted() -> None:
    shown = check_harmless(table_fragment("many", ["n"], ([number] for number in range(100_000))))
    assert "and 99,800 more" in shown
    assert len(shown) < 2_000


NAMES = [name for name in HOSTILE if name.isprintable() and len(name) < 200]


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Savepoint:
    """Operators and states with these names and values."""
    path = tmp_path_factory.mktemp("state") / "savepoint"
    plan = Plan()
    for name in NAMES:
        plan = plan.add_operator(name, "string")
        plan = plan.add_state(name, ValueStateDescriptor(name, str), [(text, text) for text in HOSTILE])
        plan = plan.add_state(name, MapStateDescriptor(f"map of {name}", str, int), [])
    SavepointWriter.new(path, max_parallelism=8).write(plan)
    return Savepoint.open(path)


def test_savepoints_operators_and_schemas_are_shown_with_all_their_names(savepoint: Savepoint) -> None:
    whole = check_harmless(savepoint._repr_html_())
    for name, operator in savepoint.operators.items():
        assert name in whole
        shown = check_harmless(operator._repr_html_())
        assert f"map of {name}" in shown
        assert "user_key str" in shown
        assert name in check_harmless(operator.states[name]._repr_html_())


def test_every_command_prints_hostile_names_and_values_on_separate_lines(
    savepoint: Savepoint, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    name = NAMES[0]
    commands: list[list[str]] = [
        ["inspect", savepoint.uri],
        ["schema", savepoint.uri],
        ["du", savepoint.uri, "--files"],
        ["show", savepoint.uri, name, name],
        ["export", savepoint.uri, name, name, str(tmp_path / "out.csv"), "--to", "csv"],
        ["diff", savepoint.uri, savepoint.uri, "--entries"],
    ]
    for command in commands:
        assert main(command) == 0
        reported = capsys.readouterr().out
        assert all(one.isprintable() or one in "\n\t" for one in reported)
    assert main(["show", savepoint.uri, name, name]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(HOSTILE)


def compatibility(name: str) -> StateCompatibility:
    issue = CompatibilityIssue(name, FieldCompatibility.REJECT, "rule", name, name)
    return StateCompatibility(name, CompatibilityKind.INCOMPATIBLE, (issue,), {})


def test_reports_of_checks_and_restores_are_tables_of_results() -> None:
    compatible = StateCompatibility("(key)", CompatibilityKind.AS_IS, (), {})
    for name in HOSTILE:
        reports = SchemaReports({name: SchemaReport(name, compatible, (compatibility(name),), (name,))})
        restored = RestoreReport([RestoredStateReport(name, compatibility(name), 1234, 1.0)])
        for page in (reports._repr_html_(), restored._repr_html_()):
            assert "incompatible" in check_harmless(page)
        assert "1,234" in restored._repr_html_()
    assert "no state is restored" in check_harmless(SchemaReports()._repr_html_())
    assert re.search("compatible", SchemaReports({"a": SchemaReport("a", compatible, ())})._repr_html_())
    assert SchemaReports() == {}
