"""The machine-checked code rules: import cycles, head docstrings, private names, file names.

The allowed imports between packages are contracts in `pyproject.toml`, which `make lint` checks.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("snapshots", "typeserializers", "migration", "statebackend")
VERIFICATION = ("verification",)
"""Verification follows the same rules, because it checks the promises of the packages."""
NAMES_OF_LIBRARIES = {
    "_fields",
    "_field_types",
    "_name_",
    "_value_",
    "_member_map_",
    "_jdf",
    "_jsc",
    "_jsparkSession",
    "_jvm",
    "_jc",
    "_javaAccumulator",
    "_jbroadcast",
    "_pickled_broadcast_vars",
    "_python_includes",
    "_SpecialForm",
}
"""Private names of NamedTuples, enums, typing and PySpark that are documented or have no public alternative."""
FORBIDDEN_NAMES = ("utils", "util", "helpers", "helper", "common", "misc", "base", "base2", "manager")

MODULES: Mapping[str, Path] = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for package in (*PACKAGES, *VERIFICATION)
    for path in sorted((REPOSITORY / package).rglob("*.py"))
}
TREE = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")


def modules_of(package: str) -> list[str]:
    """The modules of a package, in order."""
    found = [module for module in MODULES if module.partition(".")[0] == package]
    assert found
    return found


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"), str(MODULES[module]))


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes below a tree except those of ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from run_time_nodes(node)


def imported_by(module: str) -> Iterator[str]:
    """The modules of the product that a module imports at run time, also inside functions."""
    for node in run_time_nodes(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in MODULES:
                    yield inner
                elif node.module in MODULES:
                    yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)


def circles() -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan), a module each of which imports the next."""
    edges = {module: set(imported_by(module)) for module in MODULES}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in edges[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                found.append(sorted(component))

    for module in MODULES:
        if module not in index:
            visit(module)
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined_in(tree: ast.Module) -> set[str]:
    """Every name that a module defines: functions, classes, variables, attributes of its own objects.

    Objects may access private names of their own class, and those that it inherits.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # the names of __slots__
    return names


def is_of_its_class(node: ast.expr) -> bool:
    """Whether an object may be of the accessing class: by name, or itself, as in ``super()._name``.

    The value of an attribute counts as an object of another class.
    """
    return isinstance(node, ast.Name) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("super", "type")
    )


def foreign_private_names(module: str) -> Iterator[str]:
    tree = tree_of(module)
    own = defined_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (
                f"line {node.lineno}: {alias.name} of {node.module}"
                for alias in node.names
                if is_private(alias.name) and alias.name not in NAMES_OF_LIBRARIES
            )
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            is_own = (node.attr in own and is_of_its_class(node.value)) or (
                isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            )
            if not is_own and node.attr not in NAMES_OF_LIBRARIES:
                yield f"line {node.lineno}: .{node.attr}"


def test_every_imported_library_is_a_declared_dependency() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    declared = {name.lower().replace("-", "_") for name in re.findall(r'"([\w-]+)(?:\[[\w-]+\])?>=', project)}
    imported = {
        library
        for package in PACKAGES
        for module in modules_of(package)
        for node in tree_of(module).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for library in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if library is not None
    }
    roots = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names - set(PACKAGES)
    # pyspark brings py4j, and boto3 brings botocore.
    assert roots - declared - {"py4j", "botocore"} == set()


def test_the_oldest_releases_are_those_that_the_project_accepts() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    required = dict(re.findall(r'"(\w+)>=([\d.]+)"', project.partition("\ndependencies = [")[2].partition("]")[0]))
    pins = (REPOSITORY / "scripts" / "requirements" / "oldest.txt").read_text(encoding="utf-8")
    oldest = dict(re.findall(r"^(\w+)==([\d.]+)$", pins, re.MULTILINE))
    assert oldest.keys() == required.keys() - {"typing_extensions"}
    assert [name for name, version in oldest.items() if not f"{version}.".startswith(f"{required[name]}.")] == []


def test_no_module_imports_itself_indirectly() -> None:
    assert circles() == []


@pytest.mark.parametrize("package", [*PACKAGES, *VERIFICATION])
def test_a_package_has_a_docstring(package: str) -> None:
    docstrings = {module: ast.get_docstring(tree_of(module)) or "" for module in modules_of(package) if module in TREE}
    too_little = {module: docstring for module, docstring in docstrings.items() if len(docstring.split()) < 8}

    assert too_little == {}, "the docstring of a package says what is in it"


@pytest.mark.parametrize("package", [*PACKAGES, *VERIFICATION])
def test_a_module_has_a_head_docstring(package: str) -> None:
    assert [module for module in modules_of(package) if not ast.get_docstring(tree_of(module))] == []


@pytest.mark.parametrize("package", [*PACKAGES, *VERIFICATION])
def test_no_module_uses_a_private_name_of_another(package: str) -> None:
    used = {module: found for module in modules_of(package) if (found := list(foreign_private_names(module)))}

    assert used == {}


@pytest.mark.parametrize("package", [*PACKAGES, *VERIFICATION])
def test_a_name_is_specific(package: str) -> None:
    assert [module for module in modules_of(package) if module.rpartition(".")[2] in FORBIDDEN_NAMES] == []


def test_files_of_tests_have_distinct_names() -> None:
    """Tests are not packages, so pytest could import only one of two files with the same name."""
    places = defaultdict(list)
    tests = Path(__file__).resolve().parents[1]
    for path in sorted(tests.rglob("*.py")):
        if path.name not in ("__init__.py", "conftest.py"):
            places[path.stem].append(path.relative_to(tests).as_posix())

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("stub", sorted(REPOSITORY.glob("statebackend/**/*.pyi")), ids=lambda path: path.parent.name)
def test_every_name_in_the_stub_of_a_package_is_exported(stub: Path) -> None:
    package = importlib.import_module(".".join(stub.parent.relative_to(REPOSITORY).parts))
    imports = [node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname: node.module for node in imports for alias in node.names}
    assert package.__all__ == sorted(names)
    assert {*names, "__name__"} <= set(dir(package))
    for name, module in names.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        package.no_such_name  # noqa: B018
