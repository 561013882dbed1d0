"""A record through the converters of its class: from the schema version it was written under to the present one.

Each converter gets the values of the fields by name, in a dict of its own, and returns those of the next version.
Records inside are objects with the attributes they had; they need not be of any class that still exists. What comes
out of the last converter is completed by the rules:

* a value that no converter replaced, under its old name or one that declares it as former, is converted as it would
  have been without converters (widened, nested records evolved);
* a value that a converter made must fit the new field as it is;
* an absent field gets its default;
* a name that the record has not, and that was no field of the old record either, is a mistake and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from migration.conversion import ConversionScope, Read, compile_value, passed_through
from snapshots.errors import MalformedDataError
from typeserializers.evolution.evolution_plans import RecordConvertersPlan
from typeserializers.kernel.field_metadata import name_of
from typeserializers.records.record_shape import RecordField
from typeserializers.records.records import AttrsSerializer


class ConverterChain:
    """The converters between the schema versions of two record serializers, and the rules behind them."""

    def __init__(
        self,
        scope: ConversionScope,
        plan: RecordConvertersPlan,
        old: AttrsSerializer[Any],
        new: AttrsSerializer[Any],
    ) -> None:
        self._scope = scope
        self.plan = plan
        self.new = new
        self.old_serializers = {part.name: part.serializer for part in old.fields}
        self._fitted = {part.name: passed_through(part.serializer) for part in new.fields}
        self._by_rules: dict[tuple[str, str], Callable[[Any], Any]] = {}

    def convert(self, items: Sequence[Any]) -> list[Any]:
        """The values of the new fields, in order, from those of the old fields."""
        original = dict(zip(self.old_serializers, items, strict=True))
        values: Mapping[str, Any] = dict(original)
        for version, converter in self.plan.steps:
            try:
                values = converter(dict(values))
            except Exception as error:
                raise MalformedDataError(
                    f"the converter {name_of(converter)} of version {version} raised {type(error).__name__}: {error}"
                ) from error
            if not isinstance(values, Mapping):
                raise MalformedDataError(
                    f"the converter {name_of(converter)} of version {version} must return the fields of the next "
                    f"version by name, not {type(values).__name__}"
                )
        names = {name for part in self.new.fields for name in (part.name, *part.former_names)}
        strange = sorted(name for name in values if name not in names and name not in original)
        if strange:
            raise MalformedDataError(
                f"the converters return {', '.join(strange)}, which {self.new.shape.name} does not have"
            )
        return [self._field(part, values, original) for part in self.new.fields]

    def _field(self, part: RecordField, values: Mapping[str, Any], original: Mapping[str, Any]) -> Any:
        for name in (part.name, *part.former_names):
            if name not in values:
                continue
            value = values[name]
            if name in original and value is original[name]:
                return self._converted_by_rules(name, part)(value)
            return self._fitting(part)(value)
        if part.has_default:
            return part.serializer.copy(part.make_default())
        raise MalformedDataError(
            f".{part.name}: the converters return no value for it and it has no default; return one, or give it one"
        )

    def _converted_by_rules(self, name: str, part: RecordField) -> Callable[[Any], Any]:
        known = self._by_rules.get((name, part.name))
        if known is None:
            plan = self.plan.untouched.get((name, part.name))
            if plan is None:
                known = self._fitting(part)
            else:
                old = self.old_serializers[name]
                encode, read = old.codec.write, compile_value(self._scope.conversion(plan, old, part.serializer))
                known = _through(encode, read)
            self._by_rules[name, part.name] = known
        return known

    def _fitting(self, part: RecordField) -> Callable[[Any], Any]:
        fitted = self._fitted[part.name]

        def fit(value: Any) -> Any:
            if value is None and not part.serializer.is_optional_type:
                raise MalformedDataError(f".{part.name}: the converters return None, but the field is not optional")
            try:
                return fitted(value)
            except Exception as error:
                raise MalformedDataError(f".{part.name}: {error}") from error

        return fit


def _through(encode: Callable[[Any], bytes], read: Read) -> Callable[[Any], Any]:
    return lambda value: read(encode(value), 0)[0]
