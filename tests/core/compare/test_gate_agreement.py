"""The agreement gate: every worse verdict fails, every better one passes, missing ones are reported."""

import itertools

import pytest

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.records.gate_records import Gate, GateVerdict
from sdpa_onnx.core.records.records import ConformanceRecord, ExportRecord
from sdpa_onnx.core.records.verdicts import Conformity, Outcome, Verdict
from tests.core.gate_problems import agreed, stored, timed

_WHOLE = {"site": "", "inputs": "", "dtype": "", "verdict": None}
# From best to worst.
_STEPS: tuple[dict[str, object], ...] = (
    {"verdict": Verdict.OK},
    {"verdict": Verdict.ROUNDING_LEVEL},
    {"verdict": None, "outcome": Outcome.UNSUPPORTED, "reason": "No kernel."},
    {"verdict": None, "outcome": Outcome.FAILED, "reason": "It crashed."},
    {"verdict": Verdict.SUSPICIOUS, "outcome": Outcome.DISAGREES, "diagnosis": "Odd."},
    {"verdict": Verdict.WRONG, "outcome": Outcome.DISAGREES, "diagnosis": "Off by one."},
)


@pytest.mark.parametrize(("base", "head"), list(itertools.product(range(6), repeat=2)))
def test_every_step(base: int, head: int) -> None:
    """Never worse than before, whatever was before; two failures are no tie."""
    (row,) = stored([agreed(**_STEPS[base])], [agreed(**_STEPS[head])], Gate.AGREEMENT)
    alike = GateVerdict.SAME if _STEPS[base]["verdict"] else GateVerdict.NOT_COMPARABLE
    word = alike if base == head else GateVerdict.REGRESSION if head > base else GateVerdict.BETTER
    assert (row.word, row.fails) == (word, word is GateVerdict.REGRESSION)


@pytest.mark.parametrize(
    ("ratio", "amount"), [(17.5, 17.5), (0.0, None), (float("inf"), None), (float("nan"), None), (None, None)]
)
def test_how_wrong_it_is(ratio: float | None, amount: float | None) -> None:
    """The largest error over what is allowed, where it is a number."""
    (row,) = stored([agreed()], [agreed(**_STEPS[5], max_bound_ratio=ratio)], Gate.AGREEMENT)
    assert row.amount == amount


def test_the_evidence_says_what_was_found() -> None:
    """Verdict, verdict before, and the diagnosis."""
    (row,) = stored([agreed()], [agreed(**_STEPS[5])], Gate.AGREEMENT)
    assert (row.base, row.head, row.evidence) == ("ok", "wrong", "wrong, ok before: Off by one.")
    (row,) = stored([agreed(**_STEPS[5])], [agreed(**_STEPS[5])], Gate.AGREEMENT)
    assert row.evidence == "wrong before and now: Off by one."


@pytest.mark.parametrize(("is_base", "word"), [(False, GateVerdict.REGRESSION), (True, GateVerdict.BETTER)])
def test_a_model_that_does_not_run_at_all(is_base: bool, word: GateVerdict) -> None:
    """One record without an attention corresponds to all verdicts of the other side."""
    judged = [agreed(inputs=f"spread {spread}") for spread in (1, 4, 16)]
    failed = [agreed(**_WHOLE, outcome=Outcome.FAILED, reason="It crashed.")]
    (row,) = stored(*((failed, judged) if is_base else (judged, failed)), Gate.AGREEMENT)
    assert row.word is word


def test_what_is_only_on_one_side_is_told() -> None:
    """Disappeared: reported, open, fails if strict; appeared: reported whatever its verdict."""
    other = agreed(inputs="spread 4", **_STEPS[5])
    rows = stored([agreed(), agreed(inputs="gone")], [agreed(), other], Gate.AGREEMENT)
    assert [row.word for row in rows] == [GateVerdict.SAME, GateVerdict.APPEARED, GateVerdict.DISAPPEARED]
    assert rows[1].evidence == "Only in HEAD. It is wrong: Off by one."
    assert [row.outcome for row in rows] == [Outcome.OK, Outcome.OK, Outcome.SKIPPED]
    strict = stored([agreed(), agreed(inputs="gone")], [agreed()], Gate.AGREEMENT, GateLimits(strict=True))
    assert [row.fails for row in strict] == [False, True]


def test_what_was_not_asked_is_told() -> None:
    """A runtime that is missing on the machine is no regression and no pass."""
    (row,) = stored([agreed()], [agreed(verdict=None, outcome=Outcome.SKIPPED, reason="Missing.")], Gate.AGREEMENT)
    assert (row.word, row.evidence) == (GateVerdict.NOT_COMPARABLE, "Skipped in HEAD: Missing.")


def test_a_renamed_attention_is_found() -> None:
    """By case, inputs and seed, where there is one such on both sides; another opset too."""
    (row,) = stored([agreed()], [agreed(site="attn", opset=24)], Gate.AGREEMENT)
    assert (row.word, row.evidence) == (
        GateVerdict.SAME,
        "ok before and now. Its opset was '23'. Its site was 'attention_0'.",
    )


def test_two_renamed_attentions_are_not_guessed() -> None:
    """The records cannot be matched: both are reported as disappeared and appeared."""
    base = [agreed(site="a"), agreed(site="b")]
    head = [agreed(site="c"), agreed(site="d")]
    words = [row.word for row in stored(base, head, Gate.AGREEMENT)]
    assert words == [GateVerdict.APPEARED] * 2 + [GateVerdict.DISAPPEARED] * 2


def test_another_seed_is_another_question() -> None:
    """Other inputs are not compared."""
    words = [row.word for row in stored([agreed()], [agreed(seed=1, **_STEPS[5])], Gate.AGREEMENT)]
    assert words == [GateVerdict.APPEARED, GateVerdict.DISAPPEARED]


def test_duplicates_are_paired_in_order_or_by_the_worst() -> None:
    """As often on both sides: one by one. Else the worst of each."""
    wrong = agreed(**_STEPS[5])
    rows = stored([agreed(), wrong], [agreed(), wrong], Gate.AGREEMENT)
    assert [row.word for row in rows] == [GateVerdict.SAME] * 2
    (row,) = stored([agreed(), agreed()], [agreed(), wrong, agreed()], Gate.AGREEMENT)
    assert row.word is GateVerdict.REGRESSION


def test_an_axis_that_is_fixed_now() -> None:
    """Exports count too."""
    export = ExportRecord(target="sdpa", case="sdpa", form="attention", opset=23, runtime="ort-cpu")
    baked = ExportRecord(
        target="sdpa", case="sdpa", form="attention", opset=23, runtime="ort-cpu",
        outcome=Outcome.DISAGREES, reason="q_seq_len is fixed.",
    )  # fmt: skip
    (row,) = stored([export], [baked], Gate.AGREEMENT)
    assert (row.fails, row.evidence) == (True, "disagrees, ok before: q_seq_len is fixed.")


@pytest.mark.parametrize(
    ("base", "head", "fails"),
    [
        (Conformity.RIGHT, Conformity.REFUSED, True),
        (Conformity.WRONG, Conformity.REFUSED, False),
        (Conformity.REFUSED, Conformity.CRASHED, True),
        (Conformity.CRASHED, Conformity.WRONG, True),
        (Conformity.RIGHT, Conformity.SUSPICIOUS, True),
        (Conformity.SUSPICIOUS, Conformity.WRONG, True),
        (Conformity.WRONG, Conformity.SUSPICIOUS, False),
        (Conformity.SUSPICIOUS, Conformity.SUSPICIOUS, False),
        (Conformity.RIGHT, Conformity.RIGHT, False),
        (Conformity.REFUSED, Conformity.REFUSED, False),
    ],
)
def test_conformance(base: Conformity, head: Conformity, fails: bool) -> None:
    """Features of an operator are ranked in the same way."""
    rows = [
        ConformanceRecord(
            runtime="ort-cpu", operator="Attention", feature="plain", opset=23, dtype="float32", verdict=one
        )
        for one in (base, head)
    ]
    (row,) = stored([rows[0]], [rows[1]], Gate.AGREEMENT)
    assert row.fails is fails


def test_an_arm_that_runs_no_more() -> None:
    """A timing that failed is a failure, though it has no verdict."""
    rows = stored([timed()], [timed(outcome=Outcome.FAILED, reason="It crashed.")], Gate.AGREEMENT)
    assert [(row.fails, row.evidence) for row in rows] == [(True, "failed, ok before: It crashed.")]
    assert stored([timed()], [timed()], Gate.AGREEMENT) == []


def test_kinds_without_a_gate_say_nothing() -> None:
    """Nothing to compare is no row."""
    assert stored([], [], Gate.AGREEMENT) == []
