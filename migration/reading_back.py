"""Whether new bytes must be read before they count: only where reading them could find something.

Bytes that the built-in rules put together from parts that were read are what their serializers read; reading them once
more would double the cost of a migration for nothing. What may be found is what runs when a record is made (a
validator, a hook, a constructor of one's own), what a converter returned, and whatever a serializer or a rule does
that is not of this library.
"""

from __future__ import annotations

from typing import Final

from migration.conversion import Conversion
from snapshots.plans import CustomPlan, all_plans
from typeserializers.kernel.held_parts import all_inside

_OWN_PACKAGE: Final = __name__.partition(".")[0]


def must_be_read_back(conversion: Conversion) -> bool:
    """Whether something about the new serializer, or how its bytes are made, is not known to be harmless."""
    rules = conversion.scope.table.rules()
    return (
        any(serializer.may_refuse_what_it_wrote for serializer in all_inside(conversion.new))
        or any(isinstance(plan, CustomPlan) for plan in all_plans(conversion.plan))
        or any(rule.__module__.partition(".")[0] != _OWN_PACKAGE for rule in rules)
    )
