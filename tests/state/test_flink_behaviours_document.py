"""Every test that docs/flink-behaviours.md names exists, and every case has a test or a reason."""

import ast
import functools
import pathlib
import re

import pytest

import statebackend

ROOT = pathlib.Path(statebackend.__file__).parent.parent
DOCUMENT = ROOT / "docs/flink-behaviours.md"
REFERENCE = re.compile(r"`([\w/]+\.py)::(?:(\w+)::)?(\w+)`")
CASES_AT_LEAST = 170
"""A lower bound near the present number: a broken table would have no rows."""


def cases():
    """Each row of a table: the case, and its text."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in DOCUMENT.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and "| Shown by |" not in line
    ]
    assert all(len(row) == 2 for row in rows)
    return rows


@functools.cache
def defined_in(path):
    """The test names of a file, by class; module functions under the empty name."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = {"": set()}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found[""].add(node.name)
    return found


CASES = cases()


def test_the_document_has_its_cases():
    assert len(CASES) >= CASES_AT_LEAST
    assert len({case for case, _ in CASES}) == len(CASES)


@pytest.mark.parametrize(("case", "shown_by"), CASES, ids=[case for case, _ in CASES])
def test_a_case_names_existing_tests_or_a_reason(case, shown_by):
    references = REFERENCE.findall(shown_by)
    assert references or "does not apply: " in shown_by
    assert len(references) == shown_by.count("::test_")
    for path, class_name, test in references:
        assert test.startswith("test_")
        assert test in defined_in(path)[class_name]


def test_the_named_contract_is_the_one_that_backends_pass():
    references = [one for _, shown_by in CASES for one in REFERENCE.findall(shown_by)]
    named = {class_name for path, class_name, _ in references if path.startswith("statebackend/testing/backends/")}
    assert named
    source = (ROOT / "statebackend/testing/backends/state_backend_contract.py").read_text(encoding="utf-8")
    (contract,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    assert named <= {base.id for base in contract.bases if isinstance(base, ast.Name)}
