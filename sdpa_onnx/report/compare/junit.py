"""A comparison as JUnit XML: one suite per gate, one test case per row, one failure per cause.

The XML is well-formed whatever characters a name has. The worst row of a cause fails, with the cause as its message;
the other rows of the same cause are skipped and refer to it, so that one fault is one failure. Undecided rows are
skipped, with the reason. Many rows that cannot be compared for the same reason (figures aside) are one test case.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.verdicts import Outcome
from sdpa_onnx.report.compare.gate_report import GateReport, place, summary, verdict_label
from sdpa_onnx.report.text.escape_control import escape_control

__all__ = ["render_junit"]

# Characters that XML 1.0 cannot hold, even escaped. Source: XML 1.0, production 2.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# Up to this many rows that cannot be compared for one reason are test cases of their own; a file of other benchmarks
# has thousands.
_MOST_ALIKE = 20
_FIGURES = re.compile(r"\d[\d.e+-]*")


def render_junit(report: GateReport) -> bytes:
    """Write a comparison as JUnit XML, UTF-8."""
    groups = list(_groups(report.rows))
    causes = _causes(report, groups)
    root = ET.Element(
        "testsuites", {"name": "sdpa-onnx compare", **_counts(report, causes, [rows[0] for rows in groups])}
    )
    for gate in Gate:
        found = [rows for rows in groups if rows[0].gate is gate]
        if found:
            counts = _counts(report, causes, [rows[0] for rows in found])
            suite = ET.SubElement(root, "testsuite", {"name": gate.value, **counts})
            for rows in found:
                _add(suite, report, rows[0], causes)
    output = ET.SubElement(root, "system-out")
    output.text = _xml(summary(report))
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _groups(rows: Sequence[GateRecord]) -> Iterator[Sequence[GateRecord]]:
    """Rows by test case, in order: one each, except many that cannot be compared for one reason."""
    alike: dict[tuple[object, ...], list[GateRecord]] = {}
    for index, row in enumerate(rows):
        is_bare = row.word is GateVerdict.NOT_COMPARABLE and not row.fails
        key = (row.gate, row.runtime, _FIGURES.sub("", row.evidence)) if is_bare else (index,)
        alike.setdefault(key, []).append(row)
    for found in alike.values():
        yield from [found] if len(found) > _MOST_ALIKE else ([row] for row in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Causes:
    """Names of test cases, and why each failing row fails; keys are the identities of rows.

    Args:
        names: Row -> name of its test case, unique in its suite: readers merge test cases of one name.
        sentences: Row that fails for its finding -> the sentence.
        same_as: Other failing row -> name of the test case that fails for the same cause.
    """

    names: Mapping[int, str]
    sentences: Mapping[int, str]
    same_as: Mapping[int, str]


def _causes(report: GateReport, groups: Sequence[Sequence[GateRecord]]) -> _Causes:
    names: dict[int, str] = {}
    numbers: Counter[tuple[str, str]] = Counter()
    for rows in groups:
        name = place(rows[0]) if len(rows) == 1 else f"{len(rows)} cases, such as {place(rows[0])}"
        numbers[rows[0].gate, name] += 1
        number = numbers[rows[0].gate, name]
        names[id(rows[0])] = name if number == 1 else f"{name} ({number})"
    findings = report.findings
    return _Causes(
        names=names,
        sentences={id(one.rows[0]): one.sentence for one in findings},
        same_as={id(row): names[id(one.rows[0])] for one in findings for row in one.rows[1:]},
    )


def _add(suite: ET.Element, report: GateReport, row: GateRecord, causes: _Causes) -> None:
    """Add one test case."""
    attributes = {
        "classname": _xml(f"sdpa_onnx.{row.gate}.{row.runtime or 'any'}"),
        "name": _xml(causes.names[id(row)]),
    }
    case = ET.SubElement(suite, "testcase", attributes)
    verdict, evidence = verdict_label(report, row), _xml(row.evidence)
    known = report.why(row)
    if known is not None:
        ET.SubElement(case, "skipped", {"message": _xml(f"known: {known.why}")}).text = evidence
    elif id(row) in causes.same_as:
        message = _xml(f"{verdict}: same cause as {causes.same_as[id(row)]}")
        ET.SubElement(case, "skipped", {"message": message}).text = evidence
    elif row.fails:
        message = _xml(f"{verdict}: {causes.sentences[id(row)]}")
        ET.SubElement(case, "failure", {"message": message, "type": row.gate.value}).text = evidence
    elif row.outcome is Outcome.SKIPPED:
        ET.SubElement(case, "skipped", {"message": evidence})
    else:
        ET.SubElement(case, "system-out").text = _xml(f"{verdict}: {row.evidence}")


def _counts(report: GateReport, causes: _Causes, rows: list[GateRecord]) -> dict[str, str]:
    failures = sum(id(row) in causes.sentences for row in rows)
    skipped = sum(
        row.outcome is Outcome.SKIPPED or id(row) in causes.same_as or (row.fails and report.why(row) is not None)
        for row in rows
    )
    return {"tests": str(len(rows)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}


def _xml(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", escape_control(text))
