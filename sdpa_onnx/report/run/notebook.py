"""Records as HTML for a notebook: how many and with which result, one or two charts, and the main tables.

A picture is embedded as an image, in which no script runs; all text is escaped. The HTML loads nothing.
"""

import base64
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from sdpa_onnx.core.records.flat_rows import Cell, table_of
from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.report.run.charts import charts
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.text.escape_control import escape_control
from sdpa_onnx.report.text.number_text import NOT_KNOWN, count, figure
from sdpa_onnx.report.text.svg import to_svg
from sdpa_onnx.report.text.table import Table, text_table
from sdpa_onnx.report.text.tally import outcome_of
from sdpa_onnx.report.timing.bench_chart import bench_chart
from sdpa_onnx.report.timing.bench_points import along_length
from sdpa_onnx.report.timing.comparisons import comparisons
from sdpa_onnx.report.timing.cost_tables import COST_TITLE, WORK_TITLE
from sdpa_onnx.workflows.bench.arm_agreement import ArmAgreement
from sdpa_onnx.workflows.bench.bench_files import BenchResult

if TYPE_CHECKING:
    import altair as alt

__all__ = ["notebook_html"]

# A cell of a notebook is read at a glance; the files of a run have everything.
_MOST_CHARTS, _MOST_TABLES, _MOST_ROWS = 2, 4, 30

# Columns of the kinds that the tables of a report do not show; names as in the JSON.
_COLUMNS = {
    "attention": (
        *("node", "dialect", "spec_q_num_heads", "spec_kv_num_heads", "spec_head_dim", "spec_scale"),
        *("spec_is_causal", "spec_mask", "dynamic_axes", "baked", "reason"),
    ),
    "conformance": ("runtime", "feature", "operator", "opset", "dtype", "verdict", "observed", "reason"),
    "gate": ("gate", "word", "case", "arm", "base", "head", "ratio", "ratio_low", "ratio_high", "evidence"),
    "runtime": ("runtime", "version", "outcome", "reason"),
}


def notebook_html(records: Sequence[Record]) -> str:
    """Draw records for a notebook."""
    pictures = [_picture(chart) for chart in _charts(records)]
    tables = [_table(table) for table in _tables(records)]
    return "\n".join(["<div>", f"<p>{_safe(_summary(records))}</p>", *pictures, *tables, "</div>"])


def _summary(records: Sequence[Record]) -> str:
    """The outcomes in one line, the most frequent first."""
    outcomes = Counter(outcome_of(record).value for record in records)
    listed = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
    return f"{count(len(records), 'record')}{': ' if listed else ''}{listed}."


def _charts(records: Sequence[Record]) -> "Sequence[alt.HConcatChart | alt.ConcatChart]":
    """The chart of one bench, else the first charts of a run."""
    bench = _bench_chart([record for record in records if isinstance(record, TimingRecord)])
    return [bench] if bench is not None else list(charts(records).values())[:_MOST_CHARTS]


def _bench_chart(records: Sequence[TimingRecord]) -> "alt.HConcatChart | None":
    """The chart of comparisons that differ in one axis only; None of others."""
    results = []
    for comparison in comparisons(records):
        first = comparison.first
        sizes = {
            name: size for name in first.sizes.__struct_fields__ if (size := getattr(first.sizes, name)) is not None
        }
        arms = (*comparison.arms, *comparison.missing)
        results.append(BenchResult(sizes=sizes, records=arms, numbers=ArmAgreement(), samples={}))
    is_one_line = len(results) == 1 or bool(along_length(results).axis)
    return bench_chart(results) if is_one_line and len({frozenset(one.sizes) for one in results}) == 1 else None


def _picture(chart: "alt.HConcatChart | alt.ConcatChart") -> str:
    drawn = base64.b64encode(to_svg(chart).encode()).decode()
    words = chart.to_dict()["title"]["text"]
    return f'<img alt="{_safe(str(words))}" src="data:image/svg+xml;base64,{drawn}">'


def _tables(records: Sequence[Record]) -> list[Table]:
    """The tables of a report without those of details, and one for each kind that they do not show."""
    own = [table for table in all_tables(records) if table.title not in (COST_TITLE, WORK_TITLE)]
    return [*own, *(table for kind in _COLUMNS if (table := _kind_table(records, kind)).rows)][:_MOST_TABLES]


def _kind_table(records: Sequence[Record], kind: str) -> Table:
    """One row per record of a kind, with the columns that anything is known in."""
    flat = table_of([record for record in records if record.__struct_config__.tag == kind])
    found = {name: [row[place] for row in flat.rows] for place, name in enumerate(flat.columns)}
    shown = {
        name: found[name] for name in _COLUMNS[kind] if any(cell not in (None, "") for cell in found.get(name, ()))
    }
    heads = [name.removeprefix("spec_") for name in shown]
    rows = (dict(zip(heads, map(_cell, row), strict=True)) for row in zip(*shown.values(), strict=True))
    return text_table(kind.capitalize(), rows)


def _cell(value: Cell) -> str:
    match value:
        case None:
            return NOT_KNOWN
        case bool():
            return "yes" if value else "no"
        case float():
            return figure(value)
        case _:
            return str(value)


def _table(table: Table) -> str:
    """A table with its first rows; the note says how to read it."""
    wide = len(table.columns)
    heads = "".join(f"<th>{_safe(column.head)}</th>" for column in table.columns)
    lines, left = (
        [f"<table><caption>{_safe(table.title)}</caption>", f"<thead><tr>{heads}</tr></thead><tbody>"],
        _MOST_ROWS,
    )
    for section in table.sections:
        if section.heading and left:
            lines.append(f'<tr><th colspan="{wide}">{_safe(section.heading)}</th></tr>')
        lines += ["<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in section.rows[:left]]
        left = max(left - len(section.rows), 0)
    hidden = table.rows - _MOST_ROWS
    more = [f"{count(hidden, 'more row')}; to_table() has every record."] if hidden > 0 else []
    notes = [table.note, *(f"[{number}] {text}" for number, text in enumerate(table.footnotes, 1)), *more]
    return "\n".join([*lines, "</tbody></table>", *(f"<p><small>{_safe(note)}</small></p>" for note in notes if note)])


def _safe(text: str) -> str:
    return escape(escape_control(text))
