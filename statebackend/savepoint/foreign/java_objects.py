"""Reads a serialized object of Java as data. No class is loaded, and no code of an object runs.

The layout is the "Object Serialization Stream Protocol" of Java, version 5:

    stream  := u16(0xACED) u16(5) content
    content := 70                                          null
             | 71 i32(handle)                              the object or description with this number
             | 72 description | 7D proxy description       of a class
             | 73 class (fields [annotation])*             an object: superclasses first
             | 74 UTF | 7C i64(length) bytes               a text
             | 75 class i32(length) element*               an array
             | 76 class                                    a class
             | 77 u8(length) bytes | 7A i32(length) bytes  a block, only in an annotation
             | 7E class content(text)                      a constant of an enumeration
    description := UTF(name) i64 handle u8(flags) u16(n) field* annotation class(superclass)
    field       := char(type) UTF(name) [an object or array: content(text)]
    annotation  := content* 78

Objects, texts, arrays, descriptions and constants get the numbers 0x7E0000, 0x7E0001, ... in the order of their starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import define, field, frozen

from snapshots.data_views import DataInputView, decode_modified_utf8
from snapshots.errors import MalformedDataError

_START: Final = bytes.fromhex("aced0005")
_FIRST_HANDLE: Final = 0x7E0000
_MAX_NESTING: Final = 100
_HAS_WRITE_METHOD, _IS_SERIALIZABLE, _IS_EXTERNALIZABLE, _HAS_BLOCKS = 1, 2, 4, 8

_PRIMITIVES: Final[Mapping[str, Callable[[DataInputView], Any]]] = {
    "B": DataInputView.read_byte,
    "C": DataInputView.read_unsigned_short,
    "D": DataInputView.read_double,
    "F": DataInputView.read_float,
    "I": DataInputView.read_int,
    "J": DataInputView.read_long,
    "S": DataInputView.read_short,
    "Z": DataInputView.read_boolean,
}


@define(eq=False)
class JavaObject:
    """An object of Java, with its ``fields`` by name.

    ``annotation`` holds what the class wrote in addition to its fields: objects, and blocks as bytes.
    """

    class_name: str
    fields: dict[str, Any] = field(factory=dict, repr=False)
    annotation: list[Any] = field(factory=list, repr=False)


@frozen(eq=False)
class _Description:
    name: str
    flags: int
    fields: tuple[tuple[str, str], ...]
    superclasses: tuple[_Description, ...]
    """The root is first. Classes without content are left out, so that each class takes bytes of an object."""

    def with_superclasses(self) -> tuple[_Description, ...]:
        has_content = self.fields or self.flags & (_HAS_WRITE_METHOD | _IS_EXTERNALIZABLE)
        return (*self.superclasses, self) if has_content else self.superclasses


def read_java_object(source: DataInputView) -> Any:
    """Read one object: None, a text, a list, the name of an enumeration's constant or of a class, or a `JavaObject`.

    Raises:
        StateFormatError: The bytes are damaged, or of a class with its own format.
    """
    if source.read(4) != _START:
        raise MalformedDataError(f"byte {source.position - 4} does not begin an object of Java")
    return _Reader(source).content()


def java_list(found: Any) -> list[Any]:
    """Return the elements of a list of Java's library. Raises `MalformedDataError` for any other object."""
    for _ in range(_MAX_NESTING):
        if isinstance(found, list):
            return found
        if not isinstance(found, JavaObject) or not found.class_name.startswith("java.util."):
            break
        if found.class_name in ("java.util.ArrayList", "java.util.CollSer", "java.util.LinkedList"):
            return [one for one in found.annotation if not isinstance(one, bytes)]
        if found.class_name == "java.util.Collections$EmptyList":
            return []
        if found.class_name == "java.util.Collections$SingletonList" and "element" in found.fields:
            return [found.fields["element"]]
        # An unmodifiable list, or the view of an array.
        found = found.fields.get("list", found.fields.get("a"))
    raise MalformedDataError(f"{java_type_of(found)} is not a known list of Java")


def java_type_of(found: Any) -> str:
    """Return the class of an object as text. The object itself may be large, or contain itself."""
    return found.class_name if isinstance(found, JavaObject) else f"a {type(found).__name__}"


class _Reader:
    def __init__(self, source: DataInputView) -> None:
        self._source = source
        self._handles: list[Any] = []
        self._nesting = 0

    def content(self) -> Any:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise MalformedDataError(f"objects of Java are nested deeper than {_MAX_NESTING}")
        kind = self._source.read_unsigned_byte()
        read = self._READERS.get(kind)
        if read is None:
            raise MalformedDataError(f"byte {self._source.position - 1} of Java's serialization is 0x{kind:02x}")
        found = read(self)
        self._nesting -= 1
        return found

    def _reference(self) -> Any:
        number = self._source.read_int() - _FIRST_HANDLE
        if not 0 <= number < len(self._handles):
            raise MalformedDataError(f"reference to the unknown object {number} of Java")
        return self._handles[number]

    def _with_handle(self, found: Any) -> Any:
        self._handles.append(found)
        return found

    def _description(self) -> _Description:
        source = self._source
        name = source.read_utf()
        source.read_long()
        number = len(self._handles)
        self._handles.append(None)
        flags = source.read_unsigned_byte()
        fields = []
        for _ in range(source.read_unsigned_short()):
            code, field_name = chr(source.read_unsigned_byte()), source.read_utf()
            if code in "[L":
                self.content()
            elif code not in _PRIMITIVES:
                raise MalformedDataError(f"field {field_name!r} of {name} has the unknown type {code!r}")
            fields.append((field_name, code))
        self._annotation()
        self._handles[number] = found = _Description(name, flags, tuple(fields), self._superclasses())
        return found

    def _proxy_description(self) -> _Description:
        number = len(self._handles)
        self._handles.append(None)
        for _ in range(self._source.read_count(2)):
            self._source.read_utf()
        self._annotation()
        self._handles[number] = found = _Description("(proxy)", _IS_SERIALIZABLE, (), self._superclasses())
        return found

    def _class(self) -> _Description | None:
        found = self.content()
        if found is not None and not isinstance(found, _Description):
            raise MalformedDataError(f"byte {self._source.position} of Java's serialization follows no class")
        return found

    def _superclasses(self) -> tuple[_Description, ...]:
        superclass = self._class()
        found = () if superclass is None else superclass.with_superclasses()
        if len(found) > _MAX_NESTING:
            raise MalformedDataError(f"a class of Java with more than {_MAX_NESTING} superclasses")
        return found

    def _known_class(self) -> _Description:
        found = self._class()
        if found is None:
            raise MalformedDataError(f"an object before byte {self._source.position} has no class")
        return found

    def _annotation(self) -> list[Any]:
        found = []
        while self._source.data[self._source.position : self._source.position + 1] != b"\x78":
            found.append(self.content())
        self._source.read(1)
        return found

    def _object(self) -> JavaObject:
        description = self._known_class()
        found: JavaObject = self._with_handle(JavaObject(description.name))
        for one in description.with_superclasses():
            if one.flags & _IS_EXTERNALIZABLE:
                if not one.flags & _HAS_BLOCKS:
                    raise MalformedDataError(f"objects of {one.name} have their own format")
            else:
                for name, code in one.fields:
                    found.fields[name] = self._value(code)
            if one.flags & (_HAS_WRITE_METHOD | _IS_EXTERNALIZABLE):
                found.annotation += self._annotation()
        return found

    def _value(self, code: str) -> Any:
        return self.content() if code in "[L" else _PRIMITIVES[code](self._source)

    def _array(self) -> list[Any]:
        code = self._known_class().name[1:2]
        if code not in _PRIMITIVES and code not in ("[", "L"):
            raise MalformedDataError(f"an array before byte {self._source.position} has the unknown type {code!r}")
        found: list[Any] = self._with_handle([])
        found.extend(self._value(code) for _ in range(self._source.read_count()))
        return found

    def _constant(self) -> Any:
        self._known_class()
        number = len(self._handles)
        self._handles.append(None)
        self._handles[number] = found = self.content()
        return found

    def _long_text(self) -> str:
        return decode_modified_utf8(self._source.read(self._source.read_long()))

    _READERS: Final[Mapping[int, Callable[[_Reader], Any]]] = {
        0x70: lambda self: None,
        0x71: _reference,
        0x72: _description,
        0x73: _object,
        0x74: lambda self: self._with_handle(self._source.read_utf()),
        0x75: _array,
        0x76: lambda self: self._with_handle(self._known_class().name),
        0x77: lambda self: self._source.read(self._source.read_unsigned_byte()),
        0x7A: lambda self: self._source.read_sized_bytes(),
        0x7C: lambda self: self._with_handle(self._long_text()),
        0x7D: _proxy_description,
        0x7E: _constant,
    }
