"""What is in a page: its elements with their attributes and texts."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "wbr", "rect", "path", "line"}


class Parsed(HTMLParser):
    """The elements of a page, with the text inside each; fails on a tag that is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, {name: value or "" for name, value in attrs}, [])
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, _, text in self._open:
            text.append(data)

    def texts(self, tag: str, **attributes: str) -> list[str]:
        """The text of every element of this tag that has these attributes."""
        return [" ".join("".join(text).split()) for _, _, text in self._found(tag, attributes)]

    def attributes(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        """The attributes of every such element."""
        return [found for _, found, _ in self._found(tag, attributes)]

    def _found(self, tag: str, wanted: dict[str, str]) -> list[tuple[str, dict[str, str], list[str]]]:
        has = {name.rstrip("_"): value for name, value in wanted.items()}
        return [
            element
            for element in self.elements
            if element[0] == tag and all(value in element[1].get(name, "").split() for name, value in has.items())
        ]


def require_text_only(page: str, *, scripts: int = 5) -> None:
    """Fail if a name has become an element, a script or an attribute that acts, or reads something from elsewhere."""
    parsed = Parsed(page)
    assert len(parsed.attributes("script")) == scripts
    tags = {tag for tag, _, _ in parsed.elements}
    assert tags.isdisjoint({"img", "link", "iframe", "object", "embed", "form", "base"})
    assert [found for _, found, _ in parsed.elements if found.keys() & {"src", "srcset", "onclick", "onerror"}] == []
    links = [found["href"] for found in parsed.attributes("a")]
    assert {link.partition(":")[0] for link in links if not link.startswith("#")} <= {"https", "records.jsonl"}
