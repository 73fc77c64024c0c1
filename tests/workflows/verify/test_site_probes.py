"""Every attention inside a larger model is cut out and asked its own probes."""

import numpy as np
import onnx
import pytest
from onnx import helper

from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Verdict
from sdpa_onnx.graph.cut import cut_site
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.verify.site_probes import ShapeKeeper, check_whole, probe_sites, sites_alone
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.graph.lift.test_cached_masks import MORE, found_in
from tests.graph.models import FLOAT, SPECS, bare, model_of, product
from tests.workflows.altered import Altered, attribute

_SIZES = {"batch_size": 1, "q_seq_len": 3}


def _two() -> OnnxModel:
    """An attention of four-dimensional arrays, a projection, and a causal one behind it."""
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    size: list[int | str | None] = ["batch_size", 2, "q_seq_len", 8]
    nodes = [
        helper.make_node("Attention", ["x", "x", "x"], ["first_out"], name="first"),
        helper.make_node("MatMul", ["first_out", "w"], ["projected"], name="project"),
        helper.make_node("Attention", ["projected", "first_out", "x"], ["y"], name="second", is_causal=1),
    ]
    return load_model(onnx.shape_inference.infer_shapes(model_of(nodes, {"x": size}, {"y": size}, {"w": weight})))


def _summed() -> OnnxModel:
    """A foreign file whose keys are as many as a cache and the new ones, which the graph says as a sum."""
    new: list[int | str | None] = ["batch_size", 2, "q_seq_len", 8]
    nodes = [
        helper.make_node("Concat", ["cache", "x"], ["all"], name="append", axis=2),
        helper.make_node("Attention", ["x", "all", "all"], ["y"], name="attend"),
    ]
    model = model_of(nodes, {"x": new, "cache": ["batch_size", 2, "old", 8]}, {"y": new})
    size = ["batch_size", 2, "old + q_seq_len", 8]
    model.graph.value_info.append(helper.make_tensor_value_info("all", FLOAT, size))
    return load_model(model)


def _probed(model: OnnxModel, runtime: Runtime, sizes: dict[str, int] | None = None) -> list[AgreementRecord]:
    check = CheckOptions(sizes=sizes or _SIZES)
    expectations, shapes = ExpectationCache(), ShapeKeeper()
    check_model(model, runtime, check, target="t", expectations=expectations, keep=shapes)
    alone = sites_alone(model, runtime, check, shapes.found)
    return list(probe_sites(alone, runtime, target="t", expectations=expectations))


def test_both_attentions_are_probed() -> None:
    """Each attention gives a record for each probe that it can be asked, at the sizes that it has inside."""
    model = _two()
    records = _probed(model, get_runtime("ort-cpu"))
    for site in model.sites:
        found = [record for record in records if record.site == site.name]
        assert [record.inputs for record in found] == [f"probe {probe.name}" for probe in probes_for(site.spec)]
        assert {(record.sizes.q_seq_len, record.sizes.kv_seq_len) for record in found} == {(3, 3)}
    assert {record.verdict for record in records} <= {Verdict.OK, Verdict.ROUNDING_LEVEL}
    assert len({record.site for record in records}) == 2


def test_the_wrong_one_of_two_is_called_wrong() -> None:
    """A runtime that drops the causal mask of the second is right about the first."""
    model = _two()
    records = _probed(model, Altered(node="second", alter=attribute("is_causal", 0)))
    wrong = {record.site for record in records if record.verdict is Verdict.WRONG}
    assert wrong == {next(site.name for site in model.sites if site.spec.is_causal)}


def test_whole_model_and_its_attentions() -> None:
    """`check_whole` judges the ladder of the whole model first, then the probes of each attention."""
    check = CheckOptions(sizes=_SIZES, spreads=(1.0,))
    records = check_whole(_two(), get_runtime("ort-cpu"), check, target="t", expectations=ExpectationCache())
    words = [record.inputs.split()[0] for record in records]
    assert words == sorted(words, reverse=True)
    assert set(words) == {"spread", "probe"}


def test_an_axis_that_is_a_sum_is_one_length_of_the_part() -> None:
    """Keys that were joined before the attention are probed at their joint length."""
    sizes = {**_SIZES, "old": 4}
    assert {record.outcome for record in _probed(_summed(), get_runtime("ort-cpu"), sizes)} == {Outcome.OK}
    check = CheckOptions(sizes=sizes, spreads=(1.0,))
    records = check_whole(_summed(), get_runtime("ort-cpu"), check, target="t", expectations=ExpectationCache())
    assert {record.outcome for record in records} == {Outcome.OK}


@pytest.mark.parametrize("name", ["bare", "torch", "without"])
def test_what_has_no_attention_to_cut_out(name: str) -> None:
    """A bare attention has been asked already, torch has no graph to cut, and a product has no attention."""
    model = {"bare": bare(SPECS["plain"]), "torch": _two(), "without": load_model(product())}[name]
    runtime = get_runtime("torch" if name == "torch" else "ort-cpu")
    assert list(sites_alone(model, runtime, CheckOptions(sizes=_SIZES), {})) == []


def test_causality_of_a_mask_is_not_asked_of_other_masks() -> None:
    """An attention that is causal only by the mask of the model is not probed: another mask would accuse it."""
    model = with_lifted_sites(found_in(MORE["strictly earlier"], total="bool[B,S] padding,")[0]).model
    (site,) = model.sites
    assert site.spec.is_causal
    assert cut_site(model, site) is not None
    sizes = {"B": 2, "L": 3, "P": 2, "S": 5}
    assert _probed(model, get_runtime("ort-cpu"), sizes) == []
