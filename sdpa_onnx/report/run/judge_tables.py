"""Tables in addition to the judgements of a file: where an error begins, and planted faults."""

from collections.abc import Sequence

from sdpa_onnx.core.records.records import LocatedRecord, Outcome, PlantedRecord, Record
from sdpa_onnx.report.text.labels import join_words, plain, site_in_words
from sdpa_onnx.report.text.table import Column, Section, Table

__all__ = ["located_table", "planted_table"]


def located_table(records: Sequence[Record]) -> Table:
    """The first bad node of every judgement that was traced."""
    found = [record for record in records if isinstance(record, LocatedRecord)]
    rows = tuple((record.runtime, plain(site_in_words(record)), plain(record.diagnosis)) for record in found)
    return Table(
        title="Where the error begins",
        heading="model",
        columns=(Column(head="runtime"), Column(head="what disagrees"), Column(head="first bad node")),
        sections=(Section(heading=found[0].target, rows=rows),) if found else (),
        note="Each node receives the values of the reference, so that only the error it adds is judged.",
    )


def planted_table(records: Sequence[Record]) -> Table:
    """Count the kinds of fault that the checks would have caught, and name those that they would miss."""
    found = [record for record in records if isinstance(record, PlantedRecord)]
    places = dict.fromkeys((record.target, record.runtime, record.site) for record in found)
    sections: dict[str, list[tuple[str, ...]]] = {}
    for target, runtime, site in places:
        here = [one for one in found if (one.target, one.runtime, one.site) == (target, runtime, site)]
        sections.setdefault(target, []).append((runtime, plain(site), *_counts(here)))
    return Table(
        title="Planted faults",
        heading="model",
        columns=(
            Column(head="runtime"),
            Column(head="attention"),
            Column(head="caught", is_number=True),
            Column(head="not caught"),
            Column(head="not applicable"),
        ),
        sections=tuple(Section(heading=target, rows=tuple(rows)) for target, rows in sections.items()),
        note=(
            "Kinds of fault, planted in the outputs of the runtime; caught: by the inputs of these checks. "
            "Not applicable: the planted change gives the right output for all of these inputs."
        ),
    )


def _counts(records: Sequence[PlantedRecord]) -> tuple[str, str, str]:
    names = {
        outcome: [record.fault for record in records if record.outcome.counted is outcome]
        for outcome in (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED)
    }
    shown = len(names[Outcome.OK]) + len(names[Outcome.FAILED])
    missed, none = (join_words(names[outcome]) or "none" for outcome in (Outcome.FAILED, Outcome.SKIPPED))
    return f"{len(names[Outcome.OK])} of {shown}", missed, none
