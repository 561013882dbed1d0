"""Values in errors: shortened with a mark, and never raising."""

from snapshots.errors import MAX_SHOWN_CHARACTERS, cut, format_value, misfit


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_a_long_text_is_shortened_with_a_mark() -> None:
    assert format_value("a" * (MAX_SHOWN_CHARACTERS - 2)) == repr("a" * (MAX_SHOWN_CHARACTERS - 2))
    assert format_value("a" * (MAX_SHOWN_CHARACTERS - 1)) == f"'{'a' * (MAX_SHOWN_CHARACTERS - 1)}... (81 characters)"
    assert (cut("abc", 3), cut("abcd", 3)) == ("abc", "abc... (4 characters)")


def test_a_value_without_a_text_is_shown_by_its_class() -> None:
    assert format_value(Unshowable()) == "a Unshowable (which cannot be shown: RuntimeError)"
    assert misfit("", 7, "is odd") == "value: 7 is odd"
    assert misfit(".a", 7, "is odd") == ".a: 7 is odd"
