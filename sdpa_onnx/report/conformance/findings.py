"""The first lines of a conformance report: what each runtime does, counted.

Says nothing that the rows do not say.
"""

from collections import Counter

from sdpa_onnx.core.records.records import ConformanceRecord
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.report.conformance.run import SKIPPED, ConformanceRun, verdict_word
from sdpa_onnx.report.text.known_summary import known_summary
from sdpa_onnx.report.text.labels import join_words
from sdpa_onnx.report.text.number_text import count

__all__ = ["conformance_findings", "refusals"]


def conformance_findings(run: ConformanceRun) -> list[str]:
    """One sentence a runtime, then how the rows stand beside the known findings."""
    stopped = [] if run.is_finished else ["This run was stopped: what follows is what was done until then."]
    beside = [known_summary(run.known)] if run.known is not None else []
    said = [
        sentence
        for runtime in run.runtimes
        for sentence in (_runtime_sentence(run, runtime), *_readings_sentence(run, runtime))
    ]
    return [*stopped, *said, *beside] if said else [*stopped, "There are no rows: nothing was asked.", *beside]


def refusals(run: ConformanceRun, runtime: str) -> list[tuple[str, list[ConformanceRecord]]]:
    """The refused rows of a runtime by reason, the most frequent first."""
    groups: dict[str, list[ConformanceRecord]] = {}
    for record in run.rows_of(runtime):
        if record.verdict is Conformity.REFUSED:
            reason = " ".join((record.reason or record.diagnosis).split())
            groups.setdefault(reason or "No reason was given.", []).append(record)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _runtime_sentence(run: ConformanceRun, runtime: str) -> str:
    rows = run.rows_of(runtime)
    version = run.versions.get(runtime, "")
    name = f"{runtime} ({version})" if version else runtime
    if not rows:
        return f"{name}: no row."
    counts = Counter(verdict_word(record) for record in rows)
    words = [*Conformity, *([SKIPPED] if counts[SKIPPED] else [])]
    told = ", ".join(f"{counts[word]} {word}" for word in words)
    first = f"{name}: {told} of {count(len(rows), 'row')}"
    return "; ".join([first, *_expanded(rows)]) + "."


def _readings_sentence(run: ConformanceRun, runtime: str) -> list[str]:
    """By how many causes the wrong rows are explained; nothing where none is."""
    wrong = [record for record in run.rows_of(runtime) if record.verdict is Conformity.WRONG]
    fits = Counter(record.reading.partition(" (")[0] for record in wrong)
    unexplained = fits.pop("", 0)
    if not fits:
        return []
    told = [f"{reading} in {count(number, 'row')}" for reading, number in fits.most_common()]
    told += [f"no known reading in {count(unexplained, 'row')}"] if unexplained else []
    return [f"What {runtime} gets wrong fits {join_words(told)}."]


def _expanded(rows: list[ConformanceRecord]) -> list[str]:
    """Which operators the runtime has no kernel for: Attention at opset 25 is expanded into 59 nodes in 70 rows."""
    groups: dict[tuple[str, int], list[int]] = {}
    for record in rows:
        if record.path == "expanded":
            groups.setdefault((record.operator, record.opset), []).append(record.path_nodes)
    said = []
    for (operator, opset), nodes in groups.items():
        where = f"{operator} at opset {opset}" if opset else operator
        least, most = min(nodes), max(nodes)
        into = str(most) if least == most else f"{least} to {most}"
        nodes_word = "node" if most == 1 else "nodes"
        said.append(f"{where} is expanded into {into} {nodes_word} in {count(len(nodes), 'row')}")
    return said
