"""The sketches of approximate aggregates, from Apache DataSketches, which the extra ``sketches`` installs.

Each is deterministic: the same values in the same order give the same bytes. Quantile sketches of DataSketches other
than the t-digest draw random numbers, so they are not used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import date, timezone
from decimal import Context, Decimal
from typing import Any, ClassVar, Final

from snapshots.errors import MalformedDataError
from statebackend.streaming.errors import JobDefinitionError

__all__ = ["SKETCHES"]


def _datasketches() -> Any:
    try:
        import datasketches
    except ImportError as error:
        raise JobDefinitionError(
            "approximate aggregates need the package datasketches; install it with pip install 'statebackend[sketches]'"
        ) from error
    return datasketches


class _Sketch(ABC):
    """A sketch over a column, and what becomes of it."""

    sketch_class: ClassVar[str]

    def __init__(self, type_name: str, argument: Any) -> None:
        self._type_name = type_name
        self._argument = argument
        self._package = _datasketches()
        self._class: Any = getattr(self._package, self.sketch_class)

    @property
    @abstractmethod
    def result_type(self) -> str:
        """The column type of the result."""

    @property
    @abstractmethod
    def value(self) -> Callable[[Any], Any]:
        """Converts a value, which is not None, to what the sketch takes."""

    @abstractmethod
    def new(self) -> Any:
        """Create an empty sketch."""

    @abstractmethod
    def estimate(self, sketch: Any) -> Any:
        """The result of a sketch."""

    def opened(self, stored: bytes | None) -> Any:
        """Return a sketch that may be updated. Raises `MalformedDataError` for bytes that are not a sketch."""
        if stored is None:
            return self.new()
        if not self.has_size_of_new(stored):
            raise MalformedDataError(f"a stored {self.sketch_class} is larger than those that aggregates make")
        try:
            return self._class.deserialize(stored)
        except Exception as error:
            raise MalformedDataError(f"a stored {self.sketch_class} cannot be read: {error}") from error

    def has_size_of_new(self, stored: bytes) -> bool:
        """Whether the header allows no larger tables than a new sketch has."""
        return True

    def closed(self, sketch: Any) -> bytes:
        """Return the bytes of a sketch."""
        stored: bytes = sketch.serialize()
        return stored

    def result(self, held: Any) -> Any:
        """The result of a sketch, of its bytes, or of None."""
        return self.estimate(self._opened(held))

    def merged(self, left: Any, right: Any) -> Any:
        """Merge two sketches, or their bytes, or None."""
        if left is None or right is None:
            return right if left is None else left
        sketch = self._opened(left)
        sketch.merge(self._opened(right))
        return sketch

    def _opened(self, held: Any) -> Any:
        return self.opened(held) if held is None or held.__class__ is bytes else held


def _text(value: Any) -> str:
    # HyperLogLog ignores the empty text.
    return f"={value}"


_EXACT: Final = Context(prec=80)
_LARGEST_INTEGER: Final = {"tinyint": 1 << 7, "smallint": 1 << 15, "int": 1 << 31, "bigint": 1 << 63}
_LG_DISTINCT: Final = 12
_LG_FREQUENT: Final = 14
_COMPRESSION: Final = 200


class _DistinctSketch(_Sketch):
    sketch_class = "hll_sketch"
    result_type = "bigint"

    @property
    def value(self) -> Callable[[Any], Any]:
        if self._type_name in ("tinyint", "smallint", "int", "bigint", "boolean"):
            return int
        if self._type_name in ("float", "double"):
            return float
        if self._type_name.startswith("decimal("):
            return lambda number: _text(number.normalize(_EXACT))
        if self._type_name == "timestamp":
            return lambda instant: _text(instant.astimezone(timezone.utc))
        return _text

    def new(self) -> Any:
        return self._class(_LG_DISTINCT, self._package.tgt_hll_type.HLL_8)

    def closed(self, sketch: Any) -> bytes:
        stored: bytes = sketch.serialize_updatable()
        return stored

    def estimate(self, sketch: Any) -> int:
        estimate: float = sketch.get_estimate()
        return round(estimate)

    def merged(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        union = self._package.hll_union(_LG_DISTINCT)
        union.update(self._opened(left))
        union.update(self._opened(right))
        return union.get_result(self._package.tgt_hll_type.HLL_8)


class _FrequentSketch(_Sketch):
    sketch_class = "frequent_strings_sketch"

    @property
    def result_type(self) -> str:
        return f"array<struct<item:{self._type_name},count:bigint>>"

    @property
    def value(self) -> Callable[[Any], Any]:
        return str

    def new(self) -> Any:
        return self._class(_LG_FREQUENT)

    def has_size_of_new(self, stored: bytes) -> bool:
        # DataSketches does not check the two sizes, which are exponents, and crashes on large ones.
        return len(stored) > 4 and stored[4] <= stored[3] <= _LG_FREQUENT

    def estimate(self, sketch: Any) -> list[tuple[Any, int]]:
        found = sketch.get_frequent_items(self._package.frequent_items_error_type.NO_FALSE_NEGATIVES)
        item: Callable[[str], Any] = int
        if self._type_name in ("string", "date"):
            item = str if self._type_name == "string" else date.fromisoformat
        best = sorted((-one[1], item(one[0])) for one in found)[: self._argument]
        return [(value, -negative) for negative, value in best]


class _PercentileSketch(_Sketch):
    sketch_class = "tdigest_double"

    @property
    def result_type(self) -> str:
        return self._type_name

    @property
    def value(self) -> Callable[[Any], Any]:
        # Without the negative zero, because sorted records may have the two zeros in any order.
        return lambda number: float(number) + 0.0

    def new(self) -> Any:
        return self._class(_COMPRESSION)

    def estimate(self, sketch: Any) -> Any:
        if sketch.is_empty():
            return None
        quantile: float = sketch.get_quantile(self._argument)
        if self._type_name in ("float", "double"):
            return quantile
        # A double may be larger than the values that it was made of.
        if self._type_name.startswith("decimal("):
            precision, scale = map(int, self._type_name[8:-1].split(","))
            largest = Decimal((0, (9,) * precision, -scale))
            value = Decimal(quantile).quantize(largest, context=_EXACT)
            return max(largest.copy_negate(), min(value, largest))
        limit = _LARGEST_INTEGER[self._type_name]
        return max(-limit, min(round(quantile), limit - 1))


SKETCHES: Final[Mapping[str, type[_Sketch]]] = {
    "distinct": _DistinctSketch,
    "top": _FrequentSketch,
    "percentile": _PercentileSketch,
}
"""The sketches by the kind of their aggregate."""
