"""Reads an HTML page as a browser does, and rejects malformed or active content."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "input"}
MAY_NOT_BE = {"script", "link", "img", "iframe", "object", "embed", "form", "use", "image", "base"}


class PageReader(HTMLParser):
    """``texts`` are all texts except styles. ``elements`` has the number of elements by name.

    A page from a server may have forms and links to that server. They are in ``links``.
    """

    def __init__(self, page: str, *, is_served: bool = False) -> None:
        super().__init__(convert_charrefs=True)
        self.may_not_be = MAY_NOT_BE - {"form"} if is_served else MAY_NOT_BE
        self.is_served = is_served
        self.links: list[str] = []
        self.texts: list[str] = []
        self.elements: dict[str, int] = {}
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in self.may_not_be, tag
        self.elements[tag] = self.elements.get(tag, 0) + 1
        for name, value in attrs:
            assert not name.startswith("on"), name
            if self.is_served and (tag, name) in {("a", "href"), ("form", "action")}:
                assert value is not None
                assert value.startswith("/")
                assert not value.startswith("//")
                self.links.append(value)
                continue
            assert name not in {"href", "src", "srcset", "action", "xlink:href"}, name
            assert "url(" not in (value or ""), value
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            assert "url(" not in data
            assert "@import" not in data
        elif data.strip():
            self.texts.append(data)
