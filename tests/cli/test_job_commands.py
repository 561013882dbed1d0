"""`statebackend lock` and `check`: their files, output and exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import programs
import pytest

from statebackend.cli.job_commands import comparison_answer, print_comparison
from statebackend.cli.job_loading import load_job
from statebackend.cli.main import main
from statebackend.cli.streams import DIFFERENT, LOSES, MISUSED, NOT_READABLE, REJECTED
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.streaming.compatibility_check import CompatibilityChecker

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]

_UNLESS_ALLOWED = (
    "state.lock: does not restore, unless the start is given allow_non_restored_state=True, which leaves "
    "out the listed state"
)


POINTS = """
from statebackend import ValueStateDescriptor
from snapshots import SimpleTypeSerializerSnapshot
from statebackend import KeyedProcessFunction
from statebackend.local import LocalStreamEnvironment
from typeserializers import TypeSerializer

class PointSerializer(TypeSerializer):
    length = 16

    def serialize(self, value, out):
        out.write_long(int(value.real))
        out.write_long(int(value.imag))

    def deserialize(self, source):
        return complex(source.read_long(), source.read_long())

    def create_instance(self):
        return 0j

    def snapshot_configuration(self):
        return PointSerializerSnapshot()

class PointSerializerSnapshot(SimpleTypeSerializerSnapshot):
    serializer_class = PointSerializer

class Keep(KeyedProcessFunction):
    def open(self, context):
        self.place = context.get_state(ValueStateDescriptor("place", PointSerializer()))

    def process_element(self, sale, context):
        self.place.update(1 + 2j)
        return ()

def build(sales=()):
    env = LocalStreamEnvironment()
    env.from_elements(sales, "shop string").key_by("shop").process(Keep(), uid="totals", schema="a int").sink_to([])
    return env

if __name__ == "__main__":
    build([{"shop": "a"}]).execute("sales").savepoint("savepoint")
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_registrations: None) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[str]:
    assert main(list(arguments)) == status
    return capsys.readouterr().out.splitlines()


def failure(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = NOT_READABLE) -> str:
    assert main(list(arguments)) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    return line


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def locked(capsys: pytest.CaptureFixture[str], factory: str = "as_it_was", *arguments: str) -> None:
    run(capsys, "lock", "--job", f"programs:{factory}", *arguments)


def test_the_lock_depends_on_the_state_and_not_on_the_order_of_the_program(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    assert run(capsys, "lock", "--job", "programs:as_it_was") == ["state.lock: written"]
    before = (directory / "state.lock").read_bytes()
    assert run(capsys, "lock", "--job", "programs:other_order") == ["state.lock: unchanged"]
    assert (directory / "state.lock").read_bytes() == before
    assert "        Totals.sales: int64" in before.decode().splitlines()


@pytest.mark.parametrize(
    ("factory", "status", "line"),
    [
        ("as_it_was", 0, "state.lock: restores"),
        ("other_order", 0, "state.lock: restores"),
        ("expiring", REJECTED, "  state 'count': compatible after migration"),
        ("narrower", REJECTED, "    .sales: incompatible [field-type-changed]"),
        (
            "without_a_field",
            LOSES,
            "    .note: removed (data loss) [field-removed] the field was removed, and its values are lost",
        ),
        (
            "converted",
            LOSES,
            "    .note: removed (data loss) [field-removed] the field was removed, and its values are lost "
            "unless a converter",
        ),
        ("converted_and_declared", 0, "state.lock: restores"),
        ("without_a_state", REJECTED, "  state 'count': not registered by the job. Register it under its old name"),
        ("another_uid", REJECTED, "operator 'totals': the job has no operator of this uid."),
        ("another_key", REJECTED, "  state '(key)': incompatible"),
        ("other_key_groups", REJECTED, "has max_parallelism 128, the job 64"),
    ],
)
def test_check_reports_a_change_by_its_status_and_gives_advice(
    capsys: pytest.CaptureFixture[str], factory: str, status: int, line: str
) -> None:
    locked(capsys)
    reported = run(capsys, "check", "--lock", "state.lock", "--job", f"programs:{factory}", status=status)
    assert any(line in one for one in reported), reported
    is_rejected = factory in ("narrower", "another_key", "other_key_groups")
    accepted = run(
        capsys, "check", "state.lock", "--job", f"programs:{factory}", "--allow-loss", status=REJECTED * is_rejected
    )
    assert accepted == reported


def test_check_advises_to_keep_on_timer(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    locked(capsys, "with_timers")
    reported = run(capsys, "check", "--lock", "state.lock", "--job", "programs:as_it_was", status=REJECTED)
    [event, processing] = [line for line in reported if "-time timers" in line]
    assert event.startswith("  state 'event-time timers': timers that the job does not have. Keep on_timer")
    assert "Register it" not in event + processing


@pytest.mark.parametrize(
    ("factory", "outcome", "headline"),
    [
        ("without_a_field", "loses", "state.lock: restores, and loses what is marked 'data loss'"),
        ("without_a_state", "rejected_unless_allowed", _UNLESS_ALLOWED),
        ("another_uid", "rejected_unless_allowed", _UNLESS_ALLOWED),
    ],
)
def test_losses_of_every_start_and_losses_that_need_permission_are_distinct(
    capsys: pytest.CaptureFixture[str], factory: str, outcome: str, headline: str
) -> None:
    locked(capsys)
    check = ("check", "state.lock", "--job", f"programs:{factory}")
    status = LOSES if outcome == "loses" else REJECTED
    assert run(capsys, *check, status=status)[0] == headline
    assert answer(capsys, *check, status=status)[0]["outcome"] == outcome


def test_unknown_key_types_are_not_taken_for_compatible(capsys: pytest.CaptureFixture[str]) -> None:
    locked(capsys)
    assert "not known without a record" in failure(capsys, "check", "state.lock", "--job", "programs:keys_unknown")


def test_rejections_are_red_and_losses_yellow() -> None:
    class Colours:
        def __init__(self) -> None:
            self.styles: dict[str, str] = {}

        def line(self, text: str, style: str = "") -> None:
            self.styles[text.split()[0]] = style

    printed = Colours()
    narrower = CompatibilityChecker(load_job("programs:narrower"), load_job("programs:as_it_was").lock()).compare()
    print_comparison(printed, comparison_answer(narrower))
    lossy = CompatibilityChecker(load_job("programs:without_a_field"), load_job("programs:as_it_was").lock()).compare()
    print_comparison(printed, comparison_answer(lossy))
    assert (printed.styles[".sales:"], printed.styles[".note:"]) == ("red", "yellow")


def test_other_key_groups_hide_no_other_issue(capsys: pytest.CaptureFixture[str]) -> None:
    locked(capsys)
    reported = run(capsys, "check", "state.lock", "--job", "programs:other_key_groups_and_narrower", status=REJECTED)
    assert reported[0] == "state.lock: does not restore"
    assert "Plan().change_max_parallelism(64)" in reported[1]
    assert any("    .sales: incompatible [field-type-changed]" in line for line in reported), reported


def test_a_rejection_comes_before_a_loss(capsys: pytest.CaptureFixture[str]) -> None:
    locked(capsys, "as_it_was", "--output", "one.lock")
    locked(capsys, "narrower", "--output", "other.lock")
    run(capsys, "check", "one.lock", "--lock", "other.lock", "--job", "programs:without_a_field", status=REJECTED)


def test_json_has_every_issue_with_its_rule_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    locked(capsys)
    [reported] = answer(capsys, "check", "state.lock", "--job", "programs:narrower", status=REJECTED)
    assert (reported["stored"], reported["outcome"], reported["rejection"]) == ("state.lock", "rejected", None)
    state = reported["operators"]["totals"]["states"]["totals"]
    assert state["kind"] == "INCOMPATIBLE"
    [issue] = state["issues"]
    assert (issue["path"], issue["compatibility"], issue["rule"]) == (".sales", "REJECT", "field-type-changed")
    assert "converted_by" in issue["fix"]


def test_output_of_the_program_is_not_mixed_into_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "lock", "--job", "programs:prints")["changed"] is True


def test_writing_a_lock_reports_the_changes_from_the_former(capsys: pytest.CaptureFixture[str]) -> None:
    locked(capsys)
    reported = run(capsys, "lock", "--job", "programs:without_a_field")
    assert reported[:3] == [
        "state.lock: written",
        "compatibility of the job with the previous lockfile:",
        "state.lock: restores, and loses what is marked 'data loss'",
    ]
    run(capsys, "check", "state.lock", "--job", "programs:without_a_field")


def test_an_outdated_lock_is_reported_without_writing(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    run(capsys, "lock", "--check", "--job", "programs:as_it_was", status=DIFFERENT)
    assert not (directory / "state.lock").exists()
    locked(capsys)
    before = (directory / "state.lock").read_bytes()
    run(capsys, "lock", "--check", "--job", "programs:other_order")
    run(capsys, "lock", "--check", "--job", "programs:without_a_field", status=DIFFERENT)
    assert (directory / "state.lock").read_bytes() == before


def test_a_damaged_lock_is_rejected_by_check_and_repaired_by_lock(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    locked(capsys)
    path = directory / "state.lock"
    path.write_bytes(path.read_bytes().replace(b"sales: int64", b"sales: int32"))
    assert "edited by hand" in failure(capsys, "check", "state.lock", "--job", "programs:as_it_was")
    assert run(capsys, "lock", "--job", "programs:as_it_was") == ["state.lock: written"]
    run(capsys, "check", "state.lock", "--job", "programs:as_it_was")


def test_an_empty_history_is_not_taken_for_a_compatible_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "1.lock").write_text("no file of a history has this name")
    for history in ("empty", "missing"):
        error = failure(capsys, "check", "--history", str(tmp_path / history), "--job", "programs:as_it_was")
        assert "there is no history of locks" in error


@pytest.mark.parametrize("option", ["--backend=heap", "--parallelism=2", "--checkpoint=5", "--zookeeper=host:1"])
def test_a_lock_is_checked_for_its_content_only(capsys: pytest.CaptureFixture[str], option: str) -> None:
    locked(capsys)
    for place in (["state.lock"], ["--lock", "state.lock"]):
        assert main(["check", *place, "--job", "programs:as_it_was", option]) == MISUSED
        assert "not for lockfiles" in capsys.readouterr().err


def test_a_parallelism_beyond_the_key_groups_is_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    SavepointWriter.new(tmp_path / "stored", max_parallelism=128).write(Plan().add_operator("totals", "string"))
    stored = str(tmp_path / "stored")
    run(capsys, "check", stored, "--job", "programs:as_it_was", "--parallelism", "128")
    reported = run(capsys, "check", stored, "--job", "programs:as_it_was", "--parallelism", "129", status=REJECTED)
    assert "too few for a parallelism of 129" in reported[1]


def test_every_lock_of_a_history_is_checked_and_the_first_failure_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for factory in ("narrower", "as_it_was", "without_a_field"):
        locked(capsys, factory, "--history", "locks")
    reported = answer(capsys, "check", "--history", "locks", "--job", "programs:without_a_field", status=REJECTED)
    assert [(one["stored"][:12], one["outcome"]) for one in reported] == [
        ("locks/00003-", "restores"),
        ("locks/00002-", "loses"),
        ("locks/00001-", "rejected"),
    ]
    lines = run(capsys, "check", "--history", "locks", "--job", "programs:without_a_field", status=REJECTED)
    first = lines.index("the first of them:")
    assert lines[first + 1].startswith("locks/00001-")
    assert any("incompatible [field-type-changed]" in line for line in lines[first:])


@pytest.mark.parametrize(
    ("output", "history"), [("state.lock", "a file"), ("a file", "locks"), ("no/state.lock", "locks")]
)
def test_a_lock_that_cannot_be_written_with_its_history_leaves_all_files_unchanged(
    capsys: pytest.CaptureFixture[str], directory: Path, output: str, history: str
) -> None:
    (directory / "a file").write_text("of somebody's")
    failure(capsys, "lock", "--job", "programs:as_it_was", "--output", output, "--history", history)
    assert [(path.name, path.read_text()) for path in directory.iterdir()] == [("a file", "of somebody's")]


def test_nothing_to_compare_with_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--lock FILE" in failure(capsys, "check", "--job", "programs:as_it_was", status=MISUSED)


@pytest.mark.parametrize(
    ("job", "error"),
    [
        ("nowhere.job:build", "there is no module 'nowhere' in "),
        ("programs.more:build", "there is no module 'programs.more'"),
        ("programs:nobody", "the module programs has no 'nobody'"),
        ("programs", "name a module as `import` does"),
        ("programs.py:as_it_was", "there is no module 'programs.py'"),
        ("jobs/programs.py:as_it_was", "is not module:factory"),
        ("__main__:build", "__main__ is this command, not the program"),
        ("programs:raises", "raised RuntimeError: no connection | to anything (programs.py, line "),
        ("programs:exits", "ended the process (sys.exit(7))"),
        ("programs:exits_in_open", "ended the process (sys.exit(9))"),
        ("programs:returns_none", "returned None, which is not an environment"),
        ("programs:needs_an_argument", "raised TypeError: needs_an_argument() missing 1 required"),
        ("programs:not_a_factory", "7 is not a factory"),
        ("programs:LocalStreamEnvironment", "the job has no sink"),
        ("programs:without_a_sink", "the job has no sink"),
        ("programs:fails_in_open", "no serializer is known for object"),
        ("programs:keys_unknown", "operator 'totals': the types of its keys are not known without a record"),
    ],
)
def test_a_program_without_a_job_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], job: str, error: str
) -> None:
    assert error in failure(capsys, "lock", "--job", job)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import sys; sys.exit('usage: ...')", "importing broken ended the process"),
        ("raise ValueError('no settings')", "importing broken raised ValueError: no settings (broken.py, line 1"),
        ("import nothing_of_that_name", "broken imports 'nothing_of_that_name', which is not installed"),
        (
            "from statebackend import ListStateDescriptor\nListStateDescriptor('l', int | None)",
            "broken.py, line 2, in <module>",
        ),
        ("def build(:", "importing broken raised SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], directory: Path, text: str, error: str
) -> None:
    (directory / "broken.py").write_text(text)
    assert error in failure(capsys, "lock", "--job", "broken:build")


def test_the_program_of_the_current_directory_has_precedence(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "twice_there.py").write_text("raise ValueError('the other one')")
    monkeypatch.syspath_prepend(elsewhere)
    (directory / "twice_there.py").write_text("from programs import as_it_was as build")
    assert list(load_job("twice_there:build").operators) == list(load_job("programs:as_it_was").operators)


def test_an_environment_is_accepted_as_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    locked(capsys)
    run(capsys, "check", "state.lock", "--job", "programs:made")


SCRIPT = """
import attrs
from statebackend import ValueStateDescriptor
from statebackend import KeyedProcessFunction
from statebackend.local import LocalStreamEnvironment

@attrs.frozen
class Totals:
    sales: int = 0

class Add(KeyedProcessFunction):
    def open(self, context):
        self.totals = context.get_state(ValueStateDescriptor("totals", Totals, default=Totals()))

    def process_element(self, sale, context):
        self.totals.update(Totals(self.totals.value().sales + 1))
        yield (context.current_key,)

def build(sales=()):
    env = LocalStreamEnvironment()
    stream = env.from_elements(sales, "shop string")
    stream.key_by("shop").process(Add(), uid="totals", schema="shop string").sink_to([])
    return env

if __name__ == "__main__":
    build([{"shop": "a"}]).execute("sales").savepoint("savepoint")
"""


@pytest.mark.extended
def test_a_lock_is_equal_in_every_process(directory: Path) -> None:
    default = "words: frozenset[str] = frozenset({'a', 'bb', 'ccc', 'dddd', 'eeeee'})"
    (directory / "sales.py").write_text(SCRIPT.replace("sales: int = 0", default))
    locks = []
    for seed in ("1", "2"):
        environment = {"PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-m", "statebackend", "lock", "--job", "sales:build", "--output", seed]
        assert subprocess.run(command, cwd=directory, env=environment, check=False).returncode == 0
        locks.append((directory / seed).read_bytes())
    assert locks[0] == locks[1]
    assert b'Totals.words: frozenset[str] = ["a", "bb", "ccc", "dddd", "eeeee"]' in locks[0]


def python(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a new process in that directory."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_state_of_a_script_is_checked_by_a_process_that_never_ran_it(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    (directory / "sales.py").write_text(SCRIPT)
    assert python(directory, "sales.py").returncode == 0
    done = python(directory, "-m", "statebackend", "check", "savepoint", "--job", "sales:build")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  state 'totals': compatible as is" in done.stdout.splitlines()
    (directory / "changed.py").write_text(SCRIPT.replace("sales: int", "sales: str").replace("= 0", "= ''"))
    reported = run(capsys, "check", "savepoint", "--job", "changed:build", status=REJECTED)
    assert any("incompatible [field-type-changed]" in line for line in reported)


def test_backend_and_parallelism_default_to_those_of_the_state(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    kept = LocalStreamEnvironment(job_dir=directory / "job", backend="rocksdb")
    sales = kept.from_elements([{"shop": "a", "amount": 1}], "shop string, amount bigint").key_by("shop")
    sales.process(programs.Keep({"count": int}), uid="totals", schema="shop string").sink_to([])
    kept.execute("sales").savepoint(directory / "savepoint")
    run(capsys, "check", "job", "--job", "programs:as_it_was", "--parallelism", "3")
    reported = run(capsys, "check", "job", "--job", "programs:as_it_was", "--backend", "heap", status=REJECTED)
    assert "Take a savepoint with the old backend" in reported[1]
    run(capsys, "check", "savepoint", "--job", "programs:as_it_was", "--backend", "heap")


def test_a_serializer_of_the_program_is_locked_and_checked_by_the_module_of_the_job(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    (directory / "points.py").write_text(POINTS)
    (directory / "others.py").write_text(POINTS.replace("PointSerializer", "OtherSerializer"))
    run(capsys, "lock", "--job", "points:build")
    run(capsys, "check", "state.lock", "--job", "points:build")
    # The program has a serializer with another name, and this process does not import the one that wrote the state.
    done = python(directory, "-m", "statebackend", "check", "state.lock", "--job", "others:build")
    assert done.returncode == REJECTED
    assert "incompatible [unknown-snapshot]" in done.stdout
    assert "'points:PointSerializerSnapshot' names a class that this process has not defined" in done.stdout


def test_the_error_for_a_serializer_of_a_script_says_how_to_find_it(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    (directory / "script.py").write_text(POINTS)
    assert python(directory, "script.py").returncode == 0
    reported = run(capsys, "check", "savepoint", "--job", "script:build", status=REJECTED)
    alias = "aliases=('__main__:PointSerializerSnapshot',))"
    assert any(f"@register_snapshot('a.name.for.ever', {alias}" in line for line in reported)
    decorated = f"@register_snapshot('tests.points', {alias}\nclass PointSerializerSnapshot"
    named = POINTS.replace("class PointSerializerSnapshot", decorated)
    (directory / "named.py").write_text(named.replace("import Simple", "import register_snapshot, Simple"))
    run(capsys, "check", "savepoint", "--job", "named:build")
