"""All modules with rules, so that the table is complete where this one is imported."""

from typeserializers.evolution import (
    avro_evolution,
    literal_evolution,
    pojo_evolution,
    record_evolution,
    union_evolution,
)
from typeserializers.evolution import (
    simple_evolution as adoption_evolution,
)
from typeserializers.evolution import (
    simple_evolution as arrow_evolution,
)
from typeserializers.evolution import (
    simple_evolution as enum_evolution,
)

__all__ = [
    "adoption_evolution",
    "arrow_evolution",
    "avro_evolution",
    "enum_evolution",
    "literal_evolution",
    "pojo_evolution",
    "record_evolution",
    "union_evolution",
]
