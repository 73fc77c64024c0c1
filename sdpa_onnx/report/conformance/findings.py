"""The first lines of a conformance report: verdicts counted per runtime.

Each statement follows from the rows.
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
    """One sentence per runtime, then a comparison with the known findings."""
    stopped = [] if run.is_finished else ["Incomplete: the run was stopped, and only the rows finished by then follow."]
    known = [known_summary(run.known)] if run.known is not None else []
    sentences = [
        sentence
        for runtime in run.runtimes
        for sentence in (_runtime_sentence(run, runtime), *_readings_sentence(run, runtime))
    ]
    return [*stopped, *(sentences or ["There are no rows: nothing was tested."]), *known]


def refusals(run: ConformanceRun, runtime: str) -> list[tuple[str, list[ConformanceRecord]]]:
    """The refused rows of a runtime by reason, the most frequent first."""
    groups: dict[str, list[ConformanceRecord]] = {}
    for record in run.rows_of(runtime):
        if record.verdict is Conformity.REFUSED:
            reason = " ".join((record.reason or record.diagnosis).split())
            groups.setdefault(reason or "No reason was reported.", []).append(record)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _runtime_sentence(run: ConformanceRun, runtime: str) -> str:
    rows = run.rows_of(runtime)
    version = run.versions.get(runtime, "")
    name = f"{runtime} ({version})" if version else runtime
    if not rows:
        return f"{name}: no row."
    counts = Counter(verdict_word(record) for record in rows)
    rare = (Conformity.SUSPICIOUS, Conformity.NO_ANSWER, SKIPPED)
    verdicts = [verdict for verdict in (*Conformity, SKIPPED) if verdict not in rare or counts[verdict]]
    counted = ", ".join(f"{counts[verdict]} {verdict}" for verdict in verdicts)
    first = f"{name}: {counted} of {count(len(rows), 'row')}"
    return "; ".join([first, *_expanded(rows)]) + "."


def _readings_sentence(run: ConformanceRun, runtime: str) -> list[str]:
    """The known readings that explain wrong rows, with counts; empty if none explains any."""
    wrong = [record for record in run.rows_of(runtime) if record.verdict is Conformity.WRONG]
    fits = Counter(record.reading.partition(" (")[0] for record in wrong)
    unexplained = fits.pop("", 0)
    if not fits:
        return []
    explained = [f"{reading} in {count(number, 'row')}" for reading, number in fits.most_common()]
    explained += [f"no known reading in {count(unexplained, 'row')}"] if unexplained else []
    return [f"Wrong results of {runtime} match {join_words(explained)}."]


def _expanded(rows: list[ConformanceRecord]) -> list[str]:
    """Operators without a kernel in the runtime: Attention at opset 25 is expanded into 59 nodes in 70 rows."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    for record in rows:
        if record.path == "expanded" and record.path_nodes is not None:
            groups.setdefault((record.operator, record.opset), []).append(record.path_nodes)
    sentences = []
    for (operator, opset), nodes in groups.items():
        where = f"{operator} at opset {opset}" if opset else operator
        least, most = min(nodes), max(nodes)
        into = str(most) if least == most else f"{least} to {most}"
        nodes_word = "node" if most == 1 else "nodes"
        sentences.append(f"{where} is expanded into {into} {nodes_word} in {count(len(nodes), 'row')}")
    return sentences
