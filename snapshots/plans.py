"""What a verdict says is to be done with the bytes: its plan, a small tree of data.

Whoever judges finds out which old part a new one goes on from, and by what rule; the plan keeps it, so that whoever
carries the verdict out (`migration`) need not find it out again, and cannot find something else. A plan is relative to
the pair that was judged: the serializer that the old snapshot restores, and the new serializer; it names their parts by
index or name and holds neither of them.

Three forms are known here, because any snapshot may need them; those of the rules are in
`typeserializers.evolution.evolution_plans`, and one whose code is somebody else's is a `CustomPlan`:

    as is         the new serializer reads the old bytes and writes them alike
    rewriting     the restored serializer reads a value, which the new one writes, and reads as its own. What a verdict
                  without a plan means, if it is not *as is*
    parts         two composites of one class: part by part, then whatever the outer configuration asks for
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

if TYPE_CHECKING:
    from typeserializers.kernel.type_serializer import TypeSerializer


class Plan:
    """What is to be done with the bytes of one value; see the module."""

    def parts_of_plan(self) -> tuple[Plan, ...]:
        """The plans inside this one; none by default."""
        return ()


@frozen
class AsIsPlan(Plan):
    """The bytes stay, and the new serializer reads them."""


@frozen
class RewritePlan(Plan):
    """The value that the restored serializer reads goes through the new one."""


@frozen
class PartsPlan(Plan):
    """One plan for each nested serializer of two composites, in their order."""

    parts: tuple[Plan, ...]

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return self.parts


class CustomPlan(Plan):
    """A plan that brings its own code, for a snapshot whose rule none of the others can say."""

    @abstractmethod
    def conversion(self, old: TypeSerializer[Any], new: TypeSerializer[Any], plans: Any) -> Any:
        """The `migration.conversion.Conversion` of the pair; ``plans`` is the `migration.conversion.ConversionScope`
        that makes conversions of plans inside this one.
        """


AS_IS: Final = AsIsPlan()
REWRITE: Final = RewritePlan()


def all_plans(plan: Plan) -> Iterator[Plan]:
    """The plan and every plan inside it."""
    yield plan
    for part in plan.parts_of_plan():
        yield from all_plans(part)
