"""A comparison as JUnit XML: one suite a gate, one test case a row, a failure with its evidence.

Well-formed whatever a name holds. What is open is skipped, and says why.
"""

import re
from collections import Counter
from xml.etree import ElementTree as ET

from sdpa_onnx.core.gate_records import Gate, GateRecord
from sdpa_onnx.core.verdicts import Outcome
from sdpa_onnx.report.gate_report import GateReport, gate_words, place, summary

__all__ = ["render_junit"]

# Characters that XML 1.0 cannot hold, even escaped. Source: XML 1.0, production 2.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(report: GateReport) -> bytes:
    """Write a comparison as JUnit XML, UTF-8."""
    root = ET.Element("testsuites", {"name": "sdpa-onnx compare", **_counts(report, list(report.rows))})
    for gate in Gate:
        rows = [row for row in report.rows if row.gate is gate]
        if rows:
            suite = ET.SubElement(root, "testsuite", {"name": gate.value, **_counts(report, rows)})
            names: Counter[str] = Counter()
            for row in rows:
                names[place(row)] += 1
                _add(suite, report, row, names[place(row)])
    output = ET.SubElement(root, "system-out")
    output.text = _xml(summary(report))
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _add(suite: ET.Element, report: GateReport, row: GateRecord, number: int) -> None:
    """One test case; rows of one name are numbered, for readers take them for one."""
    name = place(row) if number == 1 else f"{place(row)} ({number})"
    attributes = {"classname": _xml(f"sdpa_onnx.{row.gate}.{row.runtime or 'any'}"), "name": _xml(name)}
    case = ET.SubElement(suite, "testcase", attributes)
    word, evidence = gate_words(report, row), _xml(row.evidence)
    known = report.why(row)
    if known is not None:
        ET.SubElement(case, "skipped", {"message": _xml(f"known: {known.why}")}).text = evidence
    elif row.fails:
        ET.SubElement(case, "failure", {"message": _xml(word), "type": row.gate.value}).text = evidence
    elif row.outcome is Outcome.SKIPPED:
        ET.SubElement(case, "skipped", {"message": evidence})
    else:
        ET.SubElement(case, "system-out").text = _xml(f"{word}: {row.evidence}")


def _counts(report: GateReport, rows: list[GateRecord]) -> dict[str, str]:
    failures = sum(row.fails and report.why(row) is None for row in rows)
    skipped = sum(row.outcome is Outcome.SKIPPED or (row.fails and report.why(row) is not None) for row in rows)
    return {"tests": str(len(rows)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}


def _xml(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
