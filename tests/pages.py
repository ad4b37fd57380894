"""How tests read HTML pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """What a page refers to, and whether its elements nest."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[str] = []
        self.references: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.references += [v or "" for name, v in attrs if name in ("src", "href", "srcset", "xlink:href", "action")]
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check_self_contained(html: str, *, scripts: bool = False) -> Reader:
    """The reader of a page, after the checks that every page has to pass. `scripts`: it may have some of its own."""
    reader = Reader(html)
    assert not reader.open
    assert all(r.startswith("data:") for r in reader.references)
    assert not re.search(r"https?:|url\(|@import|<link|<iframe", html)
    assert scripts or "<script" not in html
    return reader
