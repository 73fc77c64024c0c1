"""Decoders whose rotary embeddings torch's older exporter writes in many nodes: read, judged, right in two forms."""

from pathlib import Path

import pytest

from scripts.file_kinds import write_file
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.verdicts import Verdict
from tests.transformers.conversion import SIZES, Source

# Rotary on a part of each head, heads packed in one projection, and rotary over interleaved columns.
DECODERS = ("gpt-neox", "phi3", "cohere")


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_rotary_decoder_is_read_and_converted(name: str, tmp_path: Path) -> None:
    """Two attentions, right at three sizes that were not traced; the end by the file's own float64."""
    source = Source(write_file(f"{name} torchscript-17", tmp_path, None).path, list(SIZES))
    assert len(source.lifted.read) == len(source.lifted.found) == 2
    assert {agreement.verdict for agreement in source.judged()} <= {Verdict.OK, Verdict.ROUNDING_LEVEL}
    for form in (Form.BLOCKED, Form.ORT_GQA):
        row = source.row(form, None)
        assert (row.failure, row.wrong, row.converted, dict(row.refused)) == ("", [], 2, {})
        assert (len(row.attentions), len(row.ends)) == (2 * len(SIZES), len(SIZES))
