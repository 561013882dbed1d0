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

from attrs import frozen

from migration.conversion import ConversionScope, Read, compile_value, passed_through
from snapshots.errors import MalformedDataError
from typeserializers.evolution.evolution_plans import RecordConvertersPlan
from typeserializers.evolution.record_evolution import ambiguous_rename, match_fields
from typeserializers.kernel.field_metadata import name_of
from typeserializers.records.record_shape import RecordField
from typeserializers.records.records import AttrsSerializer


@frozen
class _Returned:
    """A name that the old record does not have."""

    name: str
    former_names: tuple[str, ...] = ()


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
        self._old_fields = {part.name: part for part in old.fields}
        self.old_serializers = {part.name: part.serializer for part in old.fields}
        self._fitted = {part.name: passed_through(part.serializer) for part in new.fields}
        self._by_rules: dict[tuple[str, str], Callable[[Any], Any]] = {}
        self._origins: dict[tuple[str, ...], Mapping[str, str]] = {}

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
        origins = self._origins_among(tuple(values))
        return [self._field(part, origins.get(part.name), values, original) for part in self.new.fields]

    def _origins_among(self, names: tuple[str, ...]) -> Mapping[str, str]:
        """The names under which the converters return the new fields, matched as the fields of an old record are."""
        known = self._origins.get(names)
        if known is None:
            returned = [self._old_fields.get(name) or _Returned(name) for name in names]
            matches = match_fields(returned, self.new.fields)
            for match in matches:
                if match.disputed:
                    reason, fix = ambiguous_rename(match)
                    raise MalformedDataError(f".{match.new.name}: {reason}. {fix}")
            known = {match.new.name: names[match.old_index] for match in matches if match.old_index is not None}
            self._origins[names] = known
        return known

    def _field(
        self, part: RecordField, name: str | None, values: Mapping[str, Any], original: Mapping[str, Any]
    ) -> Any:
        if name is not None:
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
