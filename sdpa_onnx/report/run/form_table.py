"""The table of a choice among forms: the time of each form, the chosen one, and why the others were rejected."""

import re
from collections.abc import Sequence

import msgspec

from sdpa_onnx.core.records.records import FormRecord, Outcome, Record
from sdpa_onnx.report.text.labels import join_words
from sdpa_onnx.report.text.number_text import NOT_KNOWN, count, duration, ratio_text
from sdpa_onnx.report.text.table import Table, text_table

__all__ = ["attention_names", "form_table", "forms_to_print", "limits_of_chosen"]

# The last words of two reasons. Twin: workflows/choose_form/choice.py.
_ONLY_SLOWER, _FIRST_CALLS = " x the fastest.", " in its first calls; not measured further."


def attention_names(names: Sequence[str]) -> str:
    """One attention by its name, several by their number and the first."""
    return names[0] if len(names) == 1 else f"{len(names)} attentions (first: {names[0]})"


def forms_to_print(records: Sequence[FormRecord]) -> list[FormRecord]:
    """The records to print: attentions with the same table once, without warnings (see `limits_of_chosen`)."""
    by_site: dict[str, list[FormRecord]] = {}
    for record in records:
        by_site.setdefault(record.site, []).append(msgspec.structs.replace(record, site=""))
    tables: list[tuple[list[str], list[FormRecord]]] = []
    for site, rows in by_site.items():
        same = next((sites for sites, known in tables if known == rows), None)
        if same is None:
            tables.append(([site], rows))
        else:
            same.append(site)
    return [
        msgspec.structs.replace(row, site=attention_names(sites), warnings=()) for sites, rows in tables for row in rows
    ]


def limits_of_chosen(records: Sequence[FormRecord]) -> list[str]:
    """Inputs that the chosen forms do not accept, one short line per form."""
    limits: dict[tuple[str, str], dict[str, None]] = {}
    for record in records:
        if record.chosen and record.warnings:
            limits.setdefault((record.form, record.runtime), {}).update(dict.fromkeys(record.warnings))
    return [_limit_line(list(warnings)) for warnings in limits.values()]


def _limit_line(warnings: Sequence[str]) -> str:
    # The clause before the mask, the case and the message of the runtime.
    first = re.split(r", | \(|: ", warnings[0], maxsplit=1)[0].rstrip(".")
    more = f" and {len(warnings) - 1} more" if len(warnings) > 1 else ""
    return f"{first} (--json has the full text{more})."


def form_table(records: Sequence[Record]) -> Table:
    """One section per attention and its sizes, one row per form that is right there."""
    forms = [record for record in records if isinstance(record, FormRecord) and record.outcome is Outcome.OK]
    opsets = {record.opset for record in forms}
    optional = {
        "opset": len(opsets) > 1,
        "workarounds": any(record.workarounds for record in forms),
    }
    threads = join_words([count(number, "thread") for number in sorted({record.threads for record in forms})])
    opset = f"opset {opsets.pop()}" if len(opsets) == 1 and None not in opsets else ""
    first_calls = any(record.reason.endswith(_FIRST_CALLS) and not record.chosen for record in forms)
    what = ", ".join(filter(None, (threads, opset)))
    repaired = ", with the workarounds listed" if optional["workarounds"] else ""
    notes = (
        f"{what}. Ratio: time over that of the fastest in the same interleaved run.",
        "First calls only: so slow there that it was not measured further." if first_calls else "",
        f"Every form listed here passes all probes on this runtime{repaired}.",
    )
    return text_table(
        "Forms",
        ({head: cell for head, cell in _cells(one).items() if optional.get(head, True)} for one in forms),
        heading="attention",
        numbers=("opset", "time", "ratio [95 %]"),
        note=" ".join(filter(None, notes)),
    )


def _heading(record: FormRecord) -> str:
    sizes, words = record.sizes, []
    if sizes.q_seq_len is not None and sizes.kv_seq_len is not None:
        words = [
            *([] if sizes.batch_size is None else [f"batch {sizes.batch_size}"]),
            f"{sizes.q_seq_len} {'query' if sizes.q_seq_len == 1 else 'queries'}",
            count(sizes.kv_seq_len, "key"),
        ]
    if record.past_seq_len is not None:
        words.append(f"{record.past_seq_len} in the cache")
    what = " ".join(word for word in (record.site, f"on {record.runtime}") if word)
    return ", ".join([what, *words])


def _cells(record: FormRecord) -> dict[str, str]:
    is_paired = record.ratio_low != record.ratio_high
    plain = NOT_KNOWN if record.ratio is None else f"{record.ratio:.2f}"
    return {
        "attention": _heading(record),
        "form": record.arm or record.form,
        "opset": NOT_KNOWN if record.opset is None else str(record.opset),
        "workarounds": ", ".join(record.workarounds) or NOT_KNOWN,
        "time": duration(record.median_seconds),
        "ratio [95 %]": ratio_text(record.ratio, record.ratio_low, record.ratio_high) if is_paired else plain,
        "chosen": "yes" if record.chosen else _why_not(record.reason),
    }


def _why_not(reason: str) -> str:
    """The reason in the table, which has the ratio in its own column."""
    if reason.endswith(_FIRST_CALLS):
        return "first calls only"
    return NOT_KNOWN if reason.endswith(_ONLY_SLOWER) else reason
