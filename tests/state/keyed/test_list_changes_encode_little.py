"""Appending to a list of immutable elements, or removing some, does not encode the others again."""

from typing import ClassVar

import pytest

from statebackend import ListStateDescriptor
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.harness import BackendHarness
from typeserializers import StringSerializer
from typeserializers.scalars.strings import write_text


class CountedText(StringSerializer):
    """Counts its writes and checks."""

    written: ClassVar[list[str]] = []
    checked: ClassVar[list[str]] = []

    @classmethod
    def write(cls, value):
        cls.written.append(value)
        return write_text(value)

    @classmethod
    def is_plain(cls, value):
        cls.checked.append(value)
        return type(value) is str

    def emit_write(self, emitter, value):
        emitter.append(f"{emitter.function.bind('count', self.write)}({value})")

    def emit_is_exact(self, first, again, function):
        return f"{function.bind('check', self.is_plain)}({first})"

    def emit_size(self, value, function):
        return f"len({value})"


def keep_last(state, added):
    state.update([*state.get(), added][-3:])


@pytest.mark.parametrize("backend", [RocksDBStateBackend(), HeapStateBackend()], ids=["rocksdb", "heap"])
def test_only_new_elements_are_checked_and_on_rocksdb_only_they_are_encoded(backend, tmp_path):
    is_rocksdb = isinstance(backend, RocksDBStateBackend)
    harness = BackendHarness(str(tmp_path))
    try:
        opened = harness.open(backend)
        state = opened.get_state(ListStateDescriptor("recent", CountedText()))
        harness.at(opened, 1)
        CountedText.written.clear()
        CountedText.checked.clear()
        for text in "abcdef":
            keep_last(state, text)
        assert (CountedText.checked, CountedText.written) == (list("abcdef"), [])
        harness.snapshot(opened)
        harness.at(opened, 1)
        assert CountedText.written == list("def")
        CountedText.checked.clear()
        CountedText.written.clear()
        keep_last(state, "g")
        keep_last(state, "h")
        assert CountedText.checked == ["g", "h"]
        harness.snapshot(opened)
        harness.at(opened, 1)
        if is_rocksdb:
            assert CountedText.written == ["g", "h"]
        assert state.get() == list("fgh")
        handle = harness.snapshot(opened).handle
        reopened = harness.open(backend, handle)
        harness.at(reopened, 1)
        assert reopened.get_state(ListStateDescriptor("recent", str)).get() == list("fgh")
    finally:
        harness.close()
