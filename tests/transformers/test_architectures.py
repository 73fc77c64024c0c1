"""Every attention of six transformers architectures found, and written in every form, right on its own inputs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.choose_form.workarounds import PATIENCE_SECONDS
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process
from tests.transformers.architectures import ARCHITECTURES, EXPORT_FAILS, PAIRS, TINY, export, without_notes
from tests.transformers.conversion import RUNTIME, Source, judge_sites, sizes_for

STORED = Path(__file__).parent / "tiny"
TINY_PAIRS = [("tiny-llama", "dynamo-18"), ("tiny-t5", "torchscript-17")]
# Opset 23 where it adds most: a node over repeated heads, a rotary operator, a mask beside causality. The others take
# minutes.
TESTED = [(name, exporter) for name, exporter in PAIRS if exporter != "dynamo-23" or name == "llama"]
# Masks that are causal for certain. At opset 18 dynamo hides padding by a finite number: a query that sees nothing
# averages over later keys too, and causality beside the mask would change that.
CAUSAL = {
    ("gpt2", "torchscript-18"): 2,
    ("llama", "torchscript-18"): 2,
    ("llama", "dynamo-23"): 2,
    ("t5", "torchscript-18"): 2,
    ("t5", "dynamo-18"): 2,
    ("whisper", "dynamo-18"): 2,
    ("tiny-t5", "torchscript-17"): 1,
}
AS_MANY_KEYS = "GroupQueryAttention needs as many new keys as queries: the graph has target queries and"


@pytest.fixture(scope="module")
def asked() -> Iterator[Runtime]:
    """The runtime in one process of its own, in which probes may crash."""
    with own_process(get_runtime(RUNTIME), PATIENCE_SECONDS) as runtime:
        yield runtime


def check(source: Source, name: str, exporter: str, forms: list[Form], asked: Runtime | None = None) -> None:
    """All attentions found and right, and written in each form and right, or refused for the one reason there is."""
    architecture = (ARCHITECTURES | TINY)[name]
    assert len(source.lifted.read) == len(source.lifted.found) == architecture.expected
    assert sum(attention.spec.is_causal for attention in source.lifted.read) == CAUSAL.get((name, exporter), 0)
    assert {agreement.verdict for agreement in source.judged()} <= {Verdict.OK, Verdict.ROUNDING_LEVEL}
    for form in forms:
        # The others need no workaround on this runtime, and probing takes longer than everything else.
        row = source.row(form, asked if form is Form.ATTENTION else None)
        refused = architecture.cross if form is Form.ORT_GQA else 0
        assert (row.failure, row.wrong, row.axes) == ("", [], source.axes), form
        assert row.converted == architecture.expected - refused, (form, row.refused)
        assert [reason[: len(AS_MANY_KEYS)] for reason in row.refused.values()] == [AS_MANY_KEYS] * refused, form
        assert len(row.attentions) == architecture.expected * len(source.feeds), form
        assert len(row.ends) == len(source.feeds), form


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exporter"), TESTED)
def test_every_form_of_an_export_is_right(name: str, exporter: str, tmp_path: Path, asked: Runtime) -> None:
    """Real sizes, two layers, three sets of sizes that were not traced; the end by the file's own float64."""
    source = Source(export(name, exporter, tmp_path), sizes_for(name, exporter))
    check(source, name, exporter, list(Form), asked)


@pytest.mark.parametrize(("name", "exporter"), [TINY_PAIRS[0], pytest.param(*TINY_PAIRS[1], marks=pytest.mark.slow)])
def test_every_form_of_a_stored_export_is_right(name: str, exporter: str) -> None:
    """The same for small files that are kept, so that no exporter has to run."""
    forms = [Form.DECOMPOSED, Form.ORT_MHA] if name == "tiny-llama" else list(Form)
    check(Source(STORED / f"{name}-{exporter}.onnx"), name, exporter, forms)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exporter"), TINY_PAIRS)
def test_stored_exports_are_what_the_exporter_writes(name: str, exporter: str, tmp_path: Path) -> None:
    """Node for node; the weights are random."""
    fresh = export(name, exporter, tmp_path)
    without_notes(fresh)
    counts = [Counter(node.op_type for node in onnx.load(path).graph.node) for path in (fresh, STORED / fresh.name)]
    assert counts[0] == counts[1]


def test_a_wrong_reading_would_be_seen() -> None:
    """A scale that is one percent off, or causality that is not there, is wrong on the tapped inputs."""
    source = Source(STORED / "tiny-llama-dynamo-18.onnx")
    (site,) = source.lifted.model.sites
    for planted in ({"scale": 1.01 * site.spec.scale_value}, {"left_window": 2}, {"softcap": 3.0}):
        spec = replace(site.spec, **planted)
        model = replace(source.lifted.model, sites=(replace(site, spec=spec),))
        verdicts = {one.verdict for values in source.runs for one in judge_sites(model, values)}
        assert verdicts & {Verdict.WRONG, Verdict.SUSPICIOUS}, planted


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exporter", "attention"), EXPORT_FAILS)
def test_what_the_exporter_cannot_do(name: str, exporter: str, attention: str, tmp_path: Path) -> None:
    """Pairs that are left out fail in torch, for this reason; when one no longer does, it belongs to the others."""
    with pytest.raises(Exception, match=EXPORT_FAILS[name, exporter, attention]):
        export(name, exporter, tmp_path, attention=attention)
