"""Names for people: what a case computes, and what was judged."""

from typing import Any

import pytest

from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec
from sdpa_onnx.core.records.gate_records import GateRecord
from sdpa_onnx.core.records.records import AgreementRecord, Sizes, Subject
from sdpa_onnx.report.compare.gate_report import place
from sdpa_onnx.report.text.labels import CommonFactors, case_in_words, case_options, site_in_words

_USUAL = CommonFactors(q_num_heads=8, dtype="float32")


def _record(past_seq_len: int = 0, **changes: Any) -> AgreementRecord:
    spec = AttentionSpec(**({"q_num_heads": 8, "kv_num_heads": 8, "head_dim": 64} | changes))
    case = AttentionCase(spec=spec, q_seq_len=16, past_seq_len=past_seq_len)
    sizes = Sizes(batch_size=1, q_seq_len=16, kv_seq_len=16, head_dim=64, q_num_heads=8)
    past = past_seq_len if spec.has_past else None
    return AgreementRecord(case=case.case_id, spec=spec, past_seq_len=past, sizes=sizes, dtype="float32")


@pytest.mark.parametrize(
    ("changes", "words", "tokens"),
    [
        ({}, "", ()),
        ({"kv_num_heads": 2}, "2 key/value heads", ()),
        ({"is_causal": True}, "causal", ("causal",)),
        ({"v_head_dim": 32}, "d_v 32", ("dv32",)),
        ({"left_window": 4}, "left window 4", ("wl4",)),
        ({"right_window": 0}, "right window 0", ("wr0",)),
        ({"has_past": True, "past_seq_len": 3}, "past 3", ("past3",)),
        ({"has_past": True}, "past 0", ("past0",)),
        ({"mask": "bool"}, "boolean mask", ("mask-bool",)),
        ({"mask": "float"}, "float mask", ("mask-float",)),
        ({"mask": "lengths"}, "key lengths", ("mask-lengths",)),
        ({"softcap": 2.5}, "softcap 2.5", ("cap2.5",)),
        ({"scale": 0.3}, "scale 0.3", ("scale0.3",)),
        ({"scale": "none"}, "scale none", ("scalenone",)),
        ({"scale": "1/d_k"}, "scale 1-d-k", ("scale1-d-k",)),
        ({"layout": "bsh"}, "layout BSH", ("bsh",)),
        ({"is_causal": True, "left_window": 4, "layout": "bsh"}, "causal, left window 4, layout BSH", None),
    ],
)
def test_options_in_words(changes: dict[str, Any], words: str, tokens: tuple[str, ...] | None) -> None:
    """Each as it is named, in the order of the case id; heads are a token by themselves."""
    record = _record(**changes)
    assert case_in_words(record, _USUAL) == f"batch 1, length 16, d_k 64{', ' * bool(words)}{words}"
    if tokens is not None:
        assert case_options(record, with_heads=False) == tokens
        assert case_options(record) == ("hq8", f"hkv{changes.get('kv_num_heads', 8)}", *tokens)


def test_a_larger_model_has_no_options() -> None:
    """Whatever its case is called: the name is never read."""
    named = AgreementRecord(case="b1_hq8_hkv8_q16_kv16_d64_f32_causal", sizes=_record().sizes, dtype="float32")
    assert case_options(named) == ()
    assert case_in_words(named, _USUAL) == "batch 1, length 16, d_k 64"


@pytest.mark.parametrize(
    ("subject", "site", "words"),
    [
        (Subject.ATTENTION, "sdpa", "sdpa"),
        (Subject.OUTPUT, "Y", "output 'Y'"),
        (Subject.READING, "sdpa", "the reading of 'sdpa'"),
        (Subject.ATTENTION, "", ""),
    ],
)
def test_what_was_judged(subject: Subject, site: str, words: str) -> None:
    """An output is named apart from an attention of the same name, in places of a comparison too."""
    assert site_in_words(AgreementRecord(subject=subject, site=site)) == words
    row = GateRecord(runtime="ort-cpu", case="m", subject=subject, site=site)
    assert place(row) == ", ".join(part for part in ("ort-cpu", "m", words) if part)
