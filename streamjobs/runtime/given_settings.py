"""What an environment is given, looked at before anything is touched: of which type, and within which bounds.

A setting of another type would be met later, in the middle of a start or of a run, by an error that does not name it; a
class in the place of its instance has all its methods, and none of them works.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkpointing.storage.job_services import JobServices
from migration import EvolutionRules
from statebackend import StateMetricsConfig
from statebackend.api.key_groups import check_parallelism
from streamjobs.errors import JobDefinitionError
from streamjobs.user_errors import cited, shown_instance

__all__ = ["check_given", "check_whole_numbers", "is_instance_of"]


def check_given(
    parallelism: int,
    max_parallelism: int,
    metrics: StateMetricsConfig | None,
    rules: EvolutionRules | None,
    high_availability: JobServices | None,
) -> None:
    """Raises `JobDefinitionError` for settings of an environment that cannot be."""
    check_whole_numbers({"parallelism": parallelism, "max_parallelism": max_parallelism})
    try:
        check_parallelism(parallelism, max_parallelism)
    except ValueError as error:
        raise JobDefinitionError(str(error)) from error
    for name, given, kind in (
        ("metrics", metrics, StateMetricsConfig),
        ("rules", rules, EvolutionRules),
        ("high_availability", high_availability, JobServices),
    ):
        if given is not None and not is_instance_of(given, kind):
            raise JobDefinitionError(
                f"{name} is {shown_instance(given)}; it takes an instance of {kind.__name__}, or None"
            )


def check_whole_numbers(given: Mapping[str, object]) -> None:
    """Raises `JobDefinitionError`, naming the setting, for what is no whole number; None is one that is left out."""
    for name, number in given.items():
        if number is not None and type(number) is not int:
            raise JobDefinitionError(f"{name} is {cited(number, 80)}; it takes a whole number")


def is_instance_of(given: object, kind: type) -> bool:
    """As `isinstance`, but never of a class: it has all that a protocol asks for, and none of that works."""
    return not isinstance(given, type) and isinstance(given, kind)
