"""A page as one HTML file: the same content gives the same bytes, and no text in it can become markup or code."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sdpa_onnx.report.page.cells import sort_key
from sdpa_onnx.report.page.content import PageChart, PageContent, PageTable
from sdpa_onnx.report.page.scripts import chart_script, json_text, page_file, script_hash, table_script
from sdpa_onnx.report.text.escape_control import clean_throughout, escape_control

__all__ = ["page_html"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShownCell:
    """A cell as the template needs it; `order` sorts it as a number, None as text."""

    text: str
    order: float | None
    is_number: bool
    is_command: bool
    is_link: bool


def page_html(page: PageContent, *, clean: Callable[[str], str] = escape_control) -> str:
    """Render a page.

    Args:
        clean: Applied to every text, in the data too.
    """
    import jinja2

    def shown(value: object) -> object:
        is_ours = hasattr(value, "__html__")  # marked as safe in the template
        return clean(value) if isinstance(value, str) and not is_ours else value

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(page_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts = [block for section in page.sections for block in section.blocks if isinstance(block, PageChart)]
    # The charts' script, by far the largest, is last: tables can be used before it is read.
    scripts = [table_script(), page_file("page.js"), *([chart_script()] if charts else [])]
    text: str = environment.get_template("page.html").render(
        page=page,
        sections=[section for section in page.sections if section.blocks],
        style=page_file("page.css"),
        scripts=scripts,
        hashes=[script_hash(script) for script in (*scripts, _EARLY)],
        early=_EARLY,
        specs=json_text(clean_throughout({chart.name: chart.spec for chart in charts}, clean)),
        data=json_text(clean_throughout(list(page.data.rows), clean)),
        heads=_heads,
        rows=lambda table: list(_rows(table)),
    )
    return text.lstrip() + "\n"


# Runs before the first paint, so that the page does not flash in the other theme.
_EARLY = (
    'document.documentElement.classList.add("js");'
    'try{const t=localStorage.getItem("sdpa-onnx-theme");if(t)document.documentElement.dataset.theme=t}catch{}'
)


def _heads(block: PageTable) -> list[Mapping[str, Any]]:
    """The columns, that of the sections first."""
    first = [{"head": block.table.heading, "is_number": False}] if block.table.heading else []
    return [*first, *({"head": column.head, "is_number": column.is_number} for column in block.table.columns)]


def _rows(block: PageTable) -> Iterator[Sequence[_ShownCell]]:
    """Every row with its section in the first cell, so that it is understood wherever it is sorted to."""
    table = block.table
    for section in table.sections:
        first = [_ShownCell(text=section.heading, order=None, is_number=False, is_command=False, is_link=False)]
        for row in section.rows:
            cells = [
                _ShownCell(
                    text=text,
                    order=sort_key(text) if column.is_number else None,
                    is_number=column.is_number,
                    is_command=column.head in block.commands and text not in ("", "-"),
                    is_link=column.head in block.links and text.startswith("https://"),
                )
                for text, column in zip(row, table.columns, strict=True)
            ]
            yield [*(first if table.heading else []), *cells]
