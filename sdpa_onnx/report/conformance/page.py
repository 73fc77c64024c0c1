"""The conformance report as one HTML file that is safe to send: no host name, no path, no external resource.

Texts of runtimes and models are escaped, and their file paths are removed.
"""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from sdpa_onnx.core.records.records import ConformanceRecord
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.report.conformance.findings import conformance_findings, refusals
from sdpa_onnx.report.conformance.matrix import MARK_WORDS, mark_of
from sdpa_onnx.report.conformance.page_matrix import matrix_context
from sdpa_onnx.report.conformance.run import (
    SECTION_TITLES,
    SKIPPED,
    ConformanceFinding,
    ConformanceRun,
    evidence,
    findings_of,
    known_outcome,
    place,
    places,
    ran_words,
    verdict_word,
)

__all__ = ["render_page", "without_paths"]

# An absolute path, a file URL, a Windows path; not the path of a web address, and not a fraction.
_PATHS = re.compile(
    r"file://\S+|(?<![\w.:/<>-])(?:[A-Za-z]:\\|\\\\|~/|/(?=[^\s/'\"():,;<>|]+/))[^\s'\"():,;<>|]*",
)


def render_page(run: ConformanceRun) -> str:
    """Render the page; the same run gives the same text."""
    import jinja2

    def shown(value: object) -> object:
        is_ours = hasattr(value, "__html__")  # marked as safe in the template
        return without_paths(value) if isinstance(value, str) and not is_ours else value

    pages = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _text("conformance.css"), _text("conformance.js")
    own = {"style": style, "script": script, "style_hash": _hash(style), "script_hash": _hash(script)}
    page: str = pages.get_template("conformance.html").render(**own, **_context(run))
    return page.lstrip() + "\n"


def without_paths(text: str) -> str:
    """Remove what identifies a machine: of a path only the file name remains.

    Example:
        >>> without_paths("/srv/someone/src/attention.cc:12 was false, see https://example.org/a/b")
        'attention.cc:12 was false, see https://example.org/a/b'
    """
    printable = "".join(one if one.isprintable() or one in "\n\t" else "?" for one in text)
    return _PATHS.sub(lambda found: _file_name(found[0]), printable)


def _file_name(path: str) -> str:
    name = re.split(r"[\\/]", path.rstrip(".\\/"))[-1]
    return name if re.search(r"\w\.\w", name) else "(path)"


def _text(name: str) -> str:
    return (files("sdpa_onnx.report") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The hash in the content security policy; the browser runs only the script and the style that match it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _context(run: ConformanceRun) -> dict[str, Any]:
    """All data of the page, as texts and lists."""
    counts = Counter(verdict_word(record) for record in run.records)
    ids = {id(record): f"row-{number}" for number, record in enumerate(run.records, 1)}
    sections = list(_sections(run, ids))
    targets = {row["id"]: finding["id"] for part in sections for finding in part["findings"] for row in finding["rows"]}
    used = {mark_of(record) for record in run.records}
    versions = ((runtime, version or "unknown") for runtime, version in run.versions.items())
    return {
        "title": ", ".join(version or runtime for runtime, version in run.versions.items()) or "no runtime",
        "made": run.made,
        "sentences": conformance_findings(run),
        "tallies": [{"verdict": str(one), "number": counts[one]} for one in (*Conformity, SKIPPED) if counts[one]],
        "sections": sections,
        "matrix": matrix_context(run, {key: targets.get(name, "") for key, name in ids.items()}),
        "legend": [(str(mark), words) for mark, words in MARK_WORDS.items() if mark in used],
        "facts": [*versions, *run.facts.items()],
        "command": run.command,
    }


def _sections(run: ConformanceRun, ids: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    number = 0
    for verdict, title in SECTION_TITLES.items():
        found = findings_of(run, verdict)
        cards = [_card(run, finding, ids, f"finding-{number + index}") for index, finding in enumerate(found, 1)]
        number += len(cards)
        if cards:
            yield {"verdict": str(verdict), "title": title, "findings": cards}
    for runtime in run.runtimes:
        groups = refusals(run, runtime)
        cards = [_refusal(run, group, ids, f"finding-{number + index}") for index, group in enumerate(groups, 1)]
        number += len(cards)
        if cards:
            yield {"verdict": str(Conformity.REFUSED), "title": f"Refused by {runtime}", "findings": cards}


def _card(run: ConformanceRun, finding: ConformanceFinding, ids: Mapping[int, str], name: str) -> dict[str, Any]:
    """The data of one finding: rows that are wrong, or crashed, in the same manner."""
    record = finding.worst
    facts = {
        "runtime": f"{record.runtime} ({run.versions.get(record.runtime, '')})".replace(" ()", ""),
        "where": places(finding.rows),
        "ran": ran_words(record),
        "evidence": evidence(record),
        "observed": known_outcome(record),
        "reading": record.reading,
        "source": run.sources.get(record.feature, ""),
        "known": finding.known.why if finding.known else "",
        "repeat": record.repeat,
    }
    return {
        "id": name,
        "title": record.feature,
        "subtitle": record.title,
        "is_new": finding.is_new,
        "known": finding.known is not None,
        "facts": [(key, value) for key, value in facts.items() if value],
        "rows": _rows(finding.rows, ids, beside=record),
    }


def _refusal(
    run: ConformanceRun, group: tuple[str, Sequence[ConformanceRecord]], ids: Mapping[int, str], name: str
) -> dict[str, Any]:
    """Rows that one runtime refuses for the same reason."""
    reason, rows = group
    entries = run.known.known if run.known else ()
    known = [entry.why for entry, matched in entries if any(row in matched for row in rows)]
    features = ", ".join(dict.fromkeys(row.feature for row in rows))
    sources = dict.fromkeys(run.sources[row.feature] for row in rows if row.feature in run.sources)
    facts = {"features": features, "where": places(rows), "known": known[0] if known else ""}
    facts |= {"source": next(iter(sources))} if len(sources) == 1 else {}
    return {
        "id": name,
        "title": reason,
        "subtitle": "",
        "is_new": any(row in run.known.new for row in rows) if run.known else False,
        "known": bool(known),
        "facts": [(key, value) for key, value in facts.items() if value],
        "rows": _rows(rows, ids, beside=rows[0], with_feature=True),
    }


def _rows(
    rows: Sequence[ConformanceRecord],
    ids: Mapping[int, str],
    *,
    beside: ConformanceRecord,
    with_feature: bool = False,
) -> list[dict[str, str]]:
    return [
        {
            "id": ids[id(row)],
            "place": f"{row.feature}, {place(row)}" if with_feature else place(row),
            "ran": ran_words(row),
            "evidence": evidence(row, beside=beside),
            "repeat": row.repeat,
        }
        for row in rows
    ]
