"""The pages of the documentation, their code blocks and their links; runs nothing."""

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
# What a reader opens. CHANGELOG.md is history: its commands are those of their day.
PAGES = sorted([README, ROOT / "CONTRIBUTING.md", ROOT / "reports" / "README.md", *(ROOT / "docs").rglob("*.md")])
PAGES = [page for page in PAGES if "_build" not in page.parts]

# A comment in front of a block says what the tests do with it: readers do not see it.
#   <!-- not run: REASON -->       left out
#   <!-- file: NAME -->            written to NAME in the folder of the page
#   <!-- figures vary -->          numbers and verdicts of the output depend on the machine
#   <!-- sentences vary -->        so do its sentences: only lines without a number, such as headings, are compared
#   <!-- exit code: 1 -->          the exit code of its commands, if it is not 0
#   <!-- printed -->               a text block: what the Python in front of it prints
#   <!-- given: NAME, NAME -->     anywhere on the page: files that it starts from (`recipes.py`)
_NOTE = re.compile(r"<!--\s*(.*?)\s*-->", flags=re.DOTALL)

RUN_LANGUAGES = frozenset({"console", "sh", "python"})
DATA_LANGUAGES = frozenset({"json", "text", "toml", "xml", "yaml"})


class Varies(StrEnum):
    """What of an output depends on the machine."""

    NOTHING = "nothing"
    FIGURES = "figures"
    SENTENCES = "sentences"


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One code block."""

    page: Path
    line: int
    language: str
    text: str
    notes: tuple[str, ...]

    @property
    def place(self) -> str:
        inside = self.page.is_relative_to(ROOT)
        return f"{self.page.relative_to(ROOT).as_posix() if inside else self.page.name}:{self.line}"

    def note(self, name: str) -> str | None:
        """What follows `name:` in the comment in front of the block."""
        for note in self.notes:
            if note.startswith(f"{name}:"):
                return note.removeprefix(f"{name}:").strip()
        return None

    @property
    def not_run(self) -> str | None:
        """Why the block is left out."""
        return self.note("not run")

    @property
    def varies(self) -> Varies:
        """What of its output depends on the machine."""
        return next((varies for varies in Varies if f"{varies} vary" in self.notes), Varies.NOTHING)

    def commands(self) -> list[tuple[str, str]]:
        """Each `$ command` of a console block with the output that the page prints under it."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found and found[-1][0].endswith("\\") and not found[-1][1]:
                found[-1] = (f"{found[-1][0]}\n{line.removeprefix('> ')}", [])
            else:
                assert found, f"{self.place}: output in front of the first command"
                found[-1][1].append(line)
        return [(command, "\n".join(output)) for command, output in found]


def _tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def blocks(page: Path) -> list[Block]:
    """Code blocks in the order of the page; directives of the generator, such as `{toctree}`, are none."""
    found = []
    notes: tuple[str, ...] = ()
    for token in _tokens(page):
        match token.type:
            case "html_block":
                notes += tuple(_NOTE.findall(token.content))
            case "fence" | "code_block":
                if not token.info.startswith("{"):
                    line = (token.map or [0])[0] + 1
                    language = token.info.split()[0] if token.info.strip() else ""
                    found.append(Block(page=page, line=line, language=language, text=token.content, notes=notes))
                notes = ()
            case "inline" | "heading_open":
                notes = ()
    return found


def given(page: Path) -> list[str]:
    """Files that the page starts from."""
    found = re.search(r"<!--\s*given:\s*(.*?)\s*-->", page.read_text(encoding="utf-8"))
    return [name.strip() for name in found[1].split(",")] if found else []


def links(page: Path) -> list[str]:
    """Targets of every link and picture."""
    found = []
    for token in _tokens(page):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target is not None:
                found.append(str(target))
    return found


def anchors(page: Path) -> set[str]:
    """What `#...` may name on a page: its headings, as GitHub and the generator write them, and explicit targets."""
    text = page.read_text(encoding="utf-8")
    found = set(re.findall(r"^\(([\w-]+)\)=$", text, flags=re.MULTILINE))
    tokens = _tokens(page)
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            title = "".join(child.content for child in inline.children or ())
            found.add(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))
    return found


def inline_code(page: Path) -> list[str]:
    """Every `code` inside a sentence."""
    return [child.content for token in _tokens(page) for child in token.children or () if child.type == "code_inline"]
