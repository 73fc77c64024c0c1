"""What a page shows, as data without markup; computes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from sdpa_onnx.report.text.table import Table

__all__ = [
    "PageBlock",
    "PageChart",
    "PageContent",
    "PageData",
    "PageFold",
    "PageMatrix",
    "PageMatrixCell",
    "PageMatrixRow",
    "PageSection",
    "PageStep",
    "PageTable",
    "PageText",
    "PageTone",
]


class PageTone(StrEnum):
    """How a verdict is coloured; its text says the same."""

    GOOD = "good"
    BAD = "bad"
    DOUBT = "doubt"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageText:
    """A list of sentences, or one paragraph.

    Args:
        title: Title of a closed fold around them; "" = they are always shown.
        is_code: Whether each is a command line.
    """

    lines: tuple[str, ...]
    title: str = ""
    is_code: bool = False
    kind: ClassVar[str] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageChart:
    """One chart, twice: interactive, and as the SVG that is shown without scripts.

    Args:
        name: File name without extension; unique in a page.
        subtitle: Lines that name the fixed factors.
        reading: How to read it.
        spec: The Vega-Lite definition without its title.
        svg: The same chart, drawn.
    """

    name: str
    title: str
    subtitle: tuple[str, ...]
    reading: str
    spec: Mapping[str, Any]
    svg: str
    kind: ClassVar[str] = "chart"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A table that sorts and filters.

    Args:
        anchor: Its id; unique in a page.
        is_folded: Whether it is closed at first.
        commands: Heads of the columns that hold command lines.
        links: Heads of the columns whose web addresses can be followed; a runtime must not be able to write in them.
        total: Rows before the table was cut; equal to its rows if it was not.
    """

    table: Table
    anchor: str
    is_folded: bool = False
    commands: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    total: int
    kind: ClassVar[str] = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMatrixCell:
    """One cell.

    Args:
        text: What it shows, short; label: the same in words, for a tooltip and a screen reader.
        target: The anchor of its evidence; "" = none.
    """

    text: str
    label: str
    tone: PageTone
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMatrixRow:
    """One row; None = nothing was tested.

    Args:
        group: Rows of one group follow each other under its name; "" = there are no groups.
        title: What the head means.
    """

    head: str
    group: str = ""
    title: str = ""
    cells: tuple[PageMatrixCell | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMatrix:
    """A matrix of verdicts whose cells lead to their evidence."""

    title: str
    corner: str
    heads: tuple[str, ...]
    rows: tuple[PageMatrixRow, ...]
    note: str
    kind: ClassVar[str] = "matrix"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFold:
    """Tables in one fold that is closed at first."""

    title: str
    blocks: tuple[PageTable, ...]
    kind: ClassVar[str] = "fold"


PageBlock = PageFold | PageText | PageChart | PageTable | PageMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStep:
    """One thing to do next; the command is "" if there is none."""

    sentence: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """One section; its title is its name in the navigation too.

    Args:
        anchor: Its id. An id is a global name of a page's scripts too, so that `exports`, for example, breaks them.
    """

    anchor: str
    title: str
    blocks: tuple[PageBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """The records that a page contains, for download.

    Args:
        rows: Plain records, without what is empty.
        total: Number of records of the run.
        source: The file with all of them, next to the page; "" = there is none.
    """

    rows: tuple[Mapping[str, Any], ...]
    total: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """A page.

    Args:
        title: Also the title of the window.
        subtitle: When and where it was measured.
        verdict: The first sentence.
        tone: The colour of the verdict.
        findings: The next sentences.
        steps: What to do next.
        sections: Those without blocks are left out.
    """

    title: str
    subtitle: str
    verdict: str
    tone: PageTone
    findings: tuple[str, ...]
    steps: tuple[PageStep, ...]
    sections: tuple[PageSection, ...]
    data: PageData
