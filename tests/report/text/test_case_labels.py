"""Cases by what a reader knows: layer, batch, length; the lengths of a module are in the name of its case."""

import pytest

from sdpa_onnx.core.records.records import Sizes, TimingRecord
from sdpa_onnx.report.text.labels import CommonFactors, case_in_words, known_sizes, target_in_words


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("decoder-self_b1_q128", "batch 1, length 128"),
        ("encoder-decoder_b2_q64_kv96", "batch 2, 64 queries, 96 keys"),
        ("block_batch3_rows7", "block_batch3_rows7"),
        ("b1_q8_of_mine", "b1_q8_of_mine"),
    ],
)
def test_sizes_of_a_module(case: str, words: str) -> None:
    """What is not such a name stays as it is."""
    record = TimingRecord(target="decoder-self", case=case, sizes=Sizes(batch_size=1))
    assert case_in_words(record, CommonFactors()) == words


def test_recorded_sizes_count() -> None:
    """A name is read only where the record has no length."""
    sizes = Sizes(batch_size=1, q_seq_len=16, kv_seq_len=16)
    assert known_sizes(TimingRecord(target="x", case="x_b2_q8", sizes=sizes)) == sizes


def test_targets() -> None:
    """The layers of the suites have the names of the paper; other targets keep theirs."""
    assert target_in_words("decoder-self") == "causal decoder self-attention"
    assert target_in_words("mymodel.py:Block") == "mymodel.py:Block"
