"""Lists of records: still lists, and tables, CSV and HTML for a notebook."""

import base64
import html.parser
import importlib.util
import pickle
from pathlib import Path

import pytest

import sdpa_onnx as so
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    AttentionRecord,
    ConformanceRecord,
    GateRecord,
    Outcome,
    Record,
    RuntimeRecord,
    Sizes,
    TimingRecord,
    Verdict,
)
from sdpa_onnx.errors import MissingPackageError, PlanError
from tests.core.records.test_records import FULL

HOSTILE = "<script>alert(1)</script>&\"'\x1b[2J\u202e"


def _timed(arm: str, ratio: float, **more: object) -> TimingRecord:
    return TimingRecord(
        target="m",
        case="c",
        group="c",
        arm=arm,
        baseline="torch",
        runtime="ort-cpu",
        sizes=Sizes(batch_size=1, q_seq_len=64, kv_seq_len=64),
        median_seconds=ratio * 1e-3,
        median_low=ratio * 0.9e-3,
        median_high=ratio * 1.1e-3,
        ratio=ratio,
        ratio_low=ratio * 0.9,
        ratio_high=ratio * 1.1,
        confidence=0.95,
        launches=4,
        **more,  # type: ignore[arg-type]
    )


def test_it_is_a_list() -> None:
    """Code that was written for a list goes on working."""
    records = so.RecordList(FULL.values())
    assert isinstance(records, list)
    assert records == list(FULL.values())
    assert records[0] is next(iter(FULL.values()))
    assert isinstance(records[1:3], so.RecordList)
    assert records[1:3] == list(FULL.values())[1:3]
    assert pickle.loads(pickle.dumps(records)) == records  # noqa: S301  # our own bytes


def test_repr() -> None:
    """How many of what, and what is not ok; each record of a short list in a line."""
    good = AgreementRecord(verdict=Verdict.OK)
    bad = AgreementRecord(verdict=Verdict.WRONG, outcome=Outcome.DISAGREES)
    lines = repr(so.RecordList([good, bad])).splitlines()
    assert lines == ["RecordList(2 AgreementRecord: 1 disagrees)", f"  {good!r}", f"  {bad!r}"]
    assert len(repr(so.RecordList([good] * 5)).splitlines()) == 6
    assert repr(so.RecordList([good] * 6)) == "RecordList(6 AgreementRecord: all ok)"
    first = repr(so.RecordList([good, RuntimeRecord()])).splitlines()[0]
    assert first == "RecordList(1 AgreementRecord, 1 RuntimeRecord: all ok)"
    assert repr(so.RecordList()) == "RecordList(empty)"


def test_pandas() -> None:
    """Integers stay integers where some are missing; a missing figure is missing."""
    pandas = pytest.importorskip("pandas")
    records = so.RecordList([_timed("a", 2.0, calls=3), TimingRecord(arm="b", outcome=Outcome.FAILED)])
    frame = records.to_table()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["arm"]) == ["a", "b"]
    assert frame["calls"][0] == 3
    assert list(frame["calls"].isna()) == [False, True]
    assert list(frame["ratio"].isna()) == [False, True]
    assert frame["q_seq_len"][0] == 64
    empty = so.to_table([])
    assert len(empty) == 0


def test_polars() -> None:
    """The same; null is null."""
    polars = pytest.importorskip("polars")
    frame = so.to_table([_timed("a", 2.0, calls=3), TimingRecord(arm="b", outcome=Outcome.FAILED)], library="polars")
    assert frame.schema["calls"] == polars.Int64
    assert frame["ratio"].to_list() == [2.0, None]
    results = ["kind", "outcome", "arm", "ratio", "ratio_low", "ratio_high", "verdict", "median_seconds"]
    assert frame.columns[:8] == results
    assert "steady" not in frame.columns  # empty in both


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_every_kind_has_a_table(library: so.api.TableLibrary) -> None:
    """All kinds in one."""
    pytest.importorskip(library)
    frame = so.to_table(list(FULL.values()), library=library)
    assert frame.shape[0] == len(FULL)


def test_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs one, and can be caught as what it is."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError) as missing:
        so.to_table([])
    expected = (
        "A table needs pandas or polars, which is not installed. Run: pip install pandas. `to_csv` needs neither."
    )
    assert str(missing.value) == expected
    with pytest.raises(ModuleNotFoundError, match="pip install polars"):
        so.to_table([], library="polars")
    with pytest.raises(PlanError, match="There is no table library 'excel'"):
        so.to_table([], library="excel")  # type: ignore[call-overload]


def test_polars_if_there_is_no_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is installed."""
    polars = pytest.importorskip("polars")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pandas" else found(name))
    assert isinstance(so.to_table([RuntimeRecord()]), polars.DataFrame)


def test_csv(tmp_path: Path) -> None:
    """A file in one step, readable without any library."""
    path = so.RecordList([_timed("a", 2.0)]).to_csv(tmp_path / "t.csv")
    header, row = path.read_text(encoding="utf-8").splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))["ratio"] == "2.0"


class _Parts(html.parser.HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def _shown(records: list[Record]) -> _Parts:
    parts = _Parts()
    parts.feed(so.RecordList(records)._repr_html_())
    return parts


def test_html_of_a_bench() -> None:
    """The chart is an image inside the page, the table has the ratio; nothing is loaded from elsewhere."""
    parts = _shown([_timed("torch", 1.0), _timed("blocked", 0.5)])
    assert parts.tags.count("img") == 1
    (source,) = parts.links
    kind, _, data = source.partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert b"blocked" in base64.b64decode(data)
    assert "0.50 [0.45, 0.55]" in parts.text
    assert "2 records: 2 ok." in parts.text


def test_html_of_a_failure() -> None:
    """A failed timing has a reason and no ratio."""
    parts = _shown([TimingRecord(arm="b", baseline="torch", outcome=Outcome.FAILED, reason="It does not run.")])
    assert "It does not run" in parts.text
    assert "1.0" not in parts.text
    assert "img" not in parts.tags


@pytest.mark.parametrize(
    "record",
    [
        AgreementRecord(case=HOSTILE, site=HOSTILE, runtime=HOSTILE, outcome=Outcome.FAILED, reason=HOSTILE),
        AttentionRecord(node=HOSTILE, dialect=HOSTILE, reason=HOSTILE),
        ConformanceRecord(feature=HOSTILE, observed=HOSTILE, reason=HOSTILE),
        GateRecord(case=HOSTILE, evidence=HOSTILE, base=HOSTILE),
        RuntimeRecord(runtime=HOSTILE, version=HOSTILE),
        _timed(HOSTILE, 0.5, warnings=(HOSTILE,)),
    ],
    ids=lambda record: type(record).__name__,
)
def test_hostile_texts_stay_text(record: Record) -> None:
    """Names out of a model cannot become markup, in no kind of record."""
    parts = _shown([record])
    assert "script" not in parts.tags
    assert set(parts.tags) <= {"div", "p", "small", "table", "caption", "thead", "tbody", "tr", "th", "td", "img"}
    assert "<script>alert(1)</script>" in parts.text
    assert "\x1b" not in parts.text
    assert "\u202e" not in parts.text


def test_long_lists_are_cut() -> None:
    """A notebook shows the first rows and says how many more there are."""
    parts = _shown([RuntimeRecord(runtime=f"r{number}") for number in range(33)])
    assert parts.tags.count("tr") == 31
    assert "3 more rows; to_table() has every record." in parts.text


def test_html_of_nothing() -> None:
    """An empty list has no table."""
    assert _shown([]).text.strip() == "0 records."
