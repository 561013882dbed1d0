"""The fixture `statebackend_lock`, in nested runs of pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Imported before the nested runs, because these remove the modules that they import.
import statebackend.testing.lock_check  # noqa: F401

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

REPOSITORY = Path(__file__).resolve().parents[3]

PROGRAM = """
import attrs
from statebackend import ValueStateDescriptor
from statebackend import KeyedProcessFunction
from statebackend.local import LocalStreamEnvironment

@attrs.frozen
class Totals:
    sales: int
    note: str = ""

class Keep(KeyedProcessFunction):
    def open(self, context):
        context.get_state(ValueStateDescriptor("totals", Totals))

    def process_element(self, sale, context):
        return ()

def build():
    env = LocalStreamEnvironment()
    env.from_elements([], "shop string").key_by("shop").process(Keep(), uid="totals", schema="a int").sink_to([])
    return env
"""

TEST = """
from program_under_lock import build

def test_state(statebackend_lock):
    statebackend_lock(build{arguments})
"""


class Program:
    """A program with a test of its lock, in consecutive versions."""

    def __init__(self, pytester: pytest.Pytester, arguments: str = "") -> None:
        self.pytester = pytester
        self.versions = 0
        pytester.makepyfile(test_sales=TEST.format(arguments=arguments))
        self.is_as(PROGRAM)

    def is_as(self, program: str) -> None:
        # Each version has another size. Otherwise Python would reuse the compiled module of the same second.
        self.versions += 1
        self.pytester.makepyfile(program_under_lock=f"{program}\n#{' version' * 8 * self.versions}")

    def tested(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess("-p", "statebackend.testing.pytest_plugin", *arguments)


@pytest.fixture
def program(pytester: pytest.Pytester) -> Program:
    made = Program(pytester)
    made.tested("--statebackend-lock-update").assert_outcomes(passed=1)
    return made


def test_without_a_lock_the_test_fails_and_names_the_command_that_writes_it(pytester: pytest.Pytester) -> None:
    result = Program(pytester).tested()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no lockfile at *: pytest --statebackend-lock-update 'test_sales.py::test_state'*"])


def test_an_unchanged_job_passes(program: Program) -> None:
    program.tested().assert_outcomes(passed=1)


@pytest.mark.extended_after(1)
@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        ("sales: int", "sales: str", "*.sales: incompatible [[]field-type-changed]*"),
        ('    note: str = ""\n', "", "*.note: removed (data loss) [[]field-removed]*"),
        ('note: str = ""', 'note: str = ""\n    shops: int = 0', "*the job can restore this state, but*is outdated*"),
        ('"totals", Totals', '"sums", Totals', "*state 'totals': not registered by the job*"),
    ],
)
def test_a_change_fails_with_the_issues_and_the_command_that_accepts_it(
    program: Program, before: str, after: str, reported: str
) -> None:
    program.is_as(PROGRAM.replace(before, after))
    result = program.tested()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([reported])
    result.stdout.fnmatch_lines(["*: pytest --statebackend-lock-update 'test_sales.py::test_state'*"])
    program.tested("--statebackend-lock-update").assert_outcomes(passed=1)
    program.tested().assert_outcomes(passed=1)


def test_a_program_without_a_job_fails_in_one_line(program: Program) -> None:
    program.is_as(PROGRAM.replace("    return env", ""))
    program.tested().stdout.fnmatch_lines(["*build returned None, which is not an environment*"])
    program.tested("--statebackend-lock-update").assert_outcomes(failed=1)


def test_unknown_key_types_fail_in_one_line(program: Program) -> None:
    program.is_as(PROGRAM.replace('from_elements([], "shop string")', "from_elements([])"))
    for arguments in ((), ("--statebackend-lock-update",)):
        result = program.tested(*arguments)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*the types of its keys are not known without a record*"])
        result.stdout.no_fnmatch_line("*Traceback*")


def test_an_edited_lock_fails_with_advice(program: Program) -> None:
    path = program.pytester.path / "state.lock"
    path.write_text(path.read_text().replace("sales: int64", "sales: int32"))
    program.tested().stdout.fnmatch_lines(["*edited by hand*"])


def test_every_lock_of_a_history_must_be_compatible(pytester: pytest.Pytester) -> None:
    program = Program(pytester, ', "state.lock", history="locks", allow_loss=True')
    program.tested("--statebackend-lock-update").assert_outcomes(passed=1)
    program.is_as(PROGRAM.replace('    note: str = ""\n', ""))
    program.tested("--statebackend-lock-update").assert_outcomes(passed=1)
    # Relative to the newest lock, this is a field with a default. Relative to the lock before, its type has changed.
    program.is_as(PROGRAM.replace('note: str = ""', "note: int = 0"))
    result = program.tested()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*locks/00001-*: does not restore*", "*.note: incompatible*"])


@pytest.mark.parametrize("allows_loss", [True, False])
def test_data_loss_from_a_lock_of_the_history_fails_unless_allowed(
    pytester: pytest.Pytester, allows_loss: bool
) -> None:
    program = Program(pytester, f', "state.lock", history="locks", allow_loss={allows_loss}')
    program.tested("--statebackend-lock-update").assert_outcomes(passed=1)
    program.is_as(PROGRAM.replace('    note: str = ""\n', ""))
    program.tested("--statebackend-lock-update").assert_outcomes(passed=1)
    result = program.tested()
    result.assert_outcomes(passed=int(allows_loss), failed=int(not allows_loss))
    if not allows_loss:
        result.stdout.fnmatch_lines(["*locks/00001-*", "*.note: removed (data loss)*"])


def test_a_run_without_the_fixture_imports_nothing_of_the_product(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\ndef test_it():\n    assert not "
        "{'pyarrow', 'attrs', 'hypothesis', 'pyspark'} & set(sys.modules)\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "statebackend.testing.pytest_plugin",
        "-p",
        "no:cacheprovider",
    ]
    environment = {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_pre_commit_hooks_run_existing_commands() -> None:
    hooks = (REPOSITORY / ".pre-commit-hooks.yaml").read_text()
    entries = [line.split(": ", 1)[1] for line in hooks.splitlines() if line.startswith("  entry: ")]
    assert entries == ["statebackend check", "statebackend lock --check"]
