"""docs/settings.md lists every setting with its default in the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

import statebackend
import statebackend.spark
from statebackend.checkpoint import ObjectStoreHighAvailability, ZooKeeperHighAvailability
from statebackend.checkpoint.fs.retries import monotonic_ms, monotonic_s
from statebackend.connectors import FileSink
from statebackend.local import LocalStreamEnvironment
from statebackend.spark.job import SparkJob
from statebackend.state.clock import wall_clock

_PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
_NAMES: dict[str, Any] = {
    **{name: getattr(statebackend, name) for name in statebackend.__all__},
    **{name: getattr(statebackend.spark, name) for name in statebackend.spark.__all__},
    "FileSink": FileSink,
    "LocalStreamEnvironment": LocalStreamEnvironment,
    "ObjectStoreHighAvailability": ObjectStoreHighAvailability,
    "SparkJob": SparkJob,
    "ZooKeeperHighAvailability": ZooKeeperHighAvailability,
    "monotonic_ms": monotonic_ms,
    "monotonic_s": monotonic_s,
    "wall_clock": wall_clock,
}


def _documented() -> dict[str, dict[str, Any]]:
    of: dict[str, dict[str, Any]] = {}
    owner = ""
    for cells in re.findall(r"^\| (.*) \|$", _PAGE.read_text(), re.MULTILINE)[1:]:
        named, setting, default, _ = (cell.strip() for cell in re.split(r"(?:^| )\|(?: |$)", f"{cells}", maxsplit=3))
        owner = named.strip("`") or owner
        of.setdefault(owner, {})[setting.strip("`")] = eval(default.strip("`"), dict(_NAMES))
    return of


def _in_the_code(owner: str) -> dict[str, Any]:
    target = _NAMES[owner.partition(".")[0]]
    if "." in owner:
        target = getattr(target, owner.partition(".")[2])
    found = {}
    for name, parameter in inspect.signature(target).parameters.items():
        default = parameter.default
        if isinstance(default, type(attrs.Factory(list))) or default is attrs.NOTHING:
            default = getattr(attrs.fields_dict(target)[name].default, "factory", lambda: None)()
        if default is not inspect.Parameter.empty:
            found[name] = default
    return found


@pytest.mark.parametrize("owner", sorted(_documented()))
def test_every_setting_is_on_the_page_with_its_default(owner: str) -> None:
    assert _documented()[owner] == _in_the_code(owner)
