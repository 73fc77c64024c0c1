"""Names that act instead of being seen: in a terminal, in Markdown and in JUnit."""

import io

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from sdpa_onnx.report.text.escape_control import escape_control
from sdpa_onnx.report.text.layout import TextLine, Tone
from sdpa_onnx.report.text.markdown_parts import code_span, escaped, fenced, inert
from sdpa_onnx.report.text.print_lines import print_lines

# A terminal's escape, its bell, a deletion, C1, and every character that turns the direction of writing.
_ACTING = [chr(one) for one in (0, 7, 8, 0x1B, 0x7F, 0x9B, 0x61C, 0x200E, 0x200F, 0x202A, 0x202E, 0x2066, 0x2069)]


@pytest.mark.parametrize("mark", [*_ACTING, "\ud800"], ids=ascii)
def test_what_acts_is_replaced(mark: str) -> None:
    """By a mark that shows that something was there."""
    assert escape_control(f"a{mark}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_what_is_seen_stays() -> None:
    """Umlauts, right-to-left letters, emoji, tab and newline are text."""
    text = "\u00e4 \u05d0\u05d1 \u6ce8\u610f \N{PILE OF POO}\tx\ny"
    assert escape_control(text) == text


@pytest.mark.parametrize("mark", _ACTING, ids=ascii)
def test_no_page_and_no_terminal_gets_them(mark: str) -> None:
    """Every way by which a name is shown."""
    file = io.StringIO()
    print_lines([TextLine(text=f"a{mark}b", tone=Tone.ROW)], Console(file=file, force_terminal=False))
    shown = [file.getvalue(), *(way(f"a{mark}b") for way in (escaped, inert, code_span, fenced))]
    assert not [text for text in shown if mark in text]


def test_no_link_and_no_formula() -> None:
    """GitHub makes links of bare addresses and formulas of dollar signs; code spans keep both as they are."""
    name = "see https://evil.example/x, www.evil.example, WWW.evil.example and $x^2$ `$`"
    text = inert(name)
    assert "$" not in text
    assert "://" not in text
    assert "www." not in text.lower()
    page = MarkdownIt("commonmark").render(text)
    assert "<a " not in page
    assert page.replace("\N{ZERO WIDTH SPACE}", "") == f"<p>{name}</p>\n"
    assert code_span("https://x.example $x$") == "`https://x.example $x$`"
