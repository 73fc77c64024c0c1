"""An entry written for a gate finding covers it and similar ones, and nothing much larger."""

from pathlib import Path

import msgspec
import pytest

from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.errors import PlanError
from sdpa_onnx.workflows.expected.known_findings import KnownFindings, read_expected
from sdpa_onnx.workflows.expected.write_file import write_known


def finding(gate: Gate, **fields: object) -> GateRecord:
    """A regression of this gate."""
    row = GateRecord(gate=gate, word=GateVerdict.REGRESSION, outcome=Outcome.DISAGREES, case="m", reason="Worse.")
    return msgspec.structs.replace(row, **fields)


def written(path: Path, row: GateRecord) -> KnownFindings:
    """The entries of a file that was written for one finding."""
    path.write_text(write_known([row], known=KnownFindings()), encoding="utf-8")
    return read_expected(path)


_TIME = finding(Gate.TIME, ratio=1.4, ratio_low=1.3, ratio_high=1.5, margin=0.1)


@pytest.mark.parametrize(
    ("row", "like", "larger"),
    [
        (finding(Gate.AGREEMENT, amount=3.0), {"amount": 5.9}, {"amount": 6.1}),
        (finding(Gate.AGREEMENT, amount=3.0), {"amount": 0.1}, {"amount": None}),  # failed, or not a number
        (finding(Gate.GRAPH, amount=1.5), {"amount": 1.64}, {"amount": 1.66}),
        (finding(Gate.MEMORY, base_bytes=10, head_bytes=1000), {"head_bytes": 1099}, {"head_bytes": 1101}),
        # Only what is proven to be beyond the upper end and the margin is larger.
        (_TIME, {"ratio": 1.8, "ratio_low": 1.64, "ratio_high": 2.0}, {"ratio": 1.8, "ratio_low": 1.66}),
    ],
)
def test_a_larger_finding_is_new(
    tmp_path: Path, row: GateRecord, like: dict[str, float], larger: dict[str, float]
) -> None:
    """Just inside the head-room and just beyond it."""
    expected = written(tmp_path / "known.toml", row)
    near, far = (msgspec.structs.replace(row, **fields) for fields in (like, larger))
    assert expected.sort([row, near]).new == ()
    found = expected.sort([far])
    assert found.new == (far,)
    assert [entry for entry, _ in found.changed] == list(expected.entries)


def test_of_unknown_size_nothing_is_written(tmp_path: Path) -> None:
    """A model that does not run has no size; such an entry, and an old one, allows any."""
    expected = written(tmp_path / "known.toml", finding(Gate.AGREEMENT))
    assert expected.entries[0].at_most is None
    assert expected.sort([finding(Gate.AGREEMENT, amount=1e9)]).new == ()


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("gate", "0", "'at_most' is 0; it must be a number above 0."),
        ("gate", "nan", "'at_most' is nan; it must be a number above 0."),
        ("gate", "inf", "'at_most' is inf; it must be a number above 0."),
        ("gate", "true", "'at_most' is True; it must be a number above 0."),
        ("gate", '"2"', "'at_most' is '2'; it must be a number above 0."),
        ("conformance", "2", "'at_most' is for kind 'gate' only. Remove it."),
    ],
)
def test_at_most_that_means_nothing(tmp_path: Path, kind: str, value: str, message: str) -> None:
    """An entry without effect is refused."""
    path = tmp_path / "known.toml"
    path.write_text(f'[[known]]\nkind = "{kind}"\nruntime = "r"\nat_most = {value}\nwhy = "w"\n', encoding="utf-8")
    with pytest.raises(PlanError) as caught:
        read_expected(path)
    assert str(caught.value) == f"{path}, entry 1: {message}"
