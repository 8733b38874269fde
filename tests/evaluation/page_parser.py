"""Reads a page as strictly as a reader of its source would: every tag closed in order, ids unique, references alive."""

from html.parser import HTMLParser
from typing import Any

from coca_train.report.render.page import templates

VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}
REFERENCES = ("aria-labelledby", "aria-describedby", "aria-controls", "for")


class Page(HTMLParser):
    """elements: (tag, attributes). text: of the page, without scripts and styles."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):  # <path/> inside an SVG
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text += data

    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.elements if "id" in attributes]

    def references(self) -> set[str]:
        targets = {name for _, a in self.elements for key in REFERENCES for name in (a.get(key) or "").split()}
        return targets | {a["href"][1:] for _, a in self.elements if (a.get("href") or "").startswith("#")}


def render(macro: str, *arguments: Any) -> str:
    """Return what a macro of the report's templates writes: block, views, chart."""
    return getattr(templates().get_template("blocks.html").module, macro)(*arguments)
