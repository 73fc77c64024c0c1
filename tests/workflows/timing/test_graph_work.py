"""Operations counted from shapes, compared with counts by hand."""

import onnx
import pytest
from onnx import helper

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.timing.graph_work import CountedWork, model_work, site_case
from tests.graph.models import SPECS, bare, model_of, product


def test_bare_attention_by_hand() -> None:
    """4 heads over 2 x 3 queries and 5 keys, width 8: two products of 2 operations a pair and column."""
    work = model_work(bare(SPECS["plain"]), {"batch_size": 2, "q_seq_len": 3, "kv_seq_len": 5}).work
    assert work is not None
    pairs = 2 * 4 * 3 * 5
    assert (work.useful_flops, work.executed_flops) == (pairs * 2 * 16, pairs * 2 * 16)
    assert work.exps == pairs
    assert work.bytes_moved == 4 * (2 * 4 * 3 * 16 + 2 * 4 * 5 * 16)


def test_causal_counts_the_pairs_that_attend() -> None:
    """Of 4 queries and 4 keys, 10 pairs of 16 attend; the kernel that skips nothing does all 16."""
    work = model_work(bare(SPECS["causal"]), {"batch_size": 1, "q_seq_len": 4, "kv_seq_len": 4}).work
    assert work is not None
    assert (work.useful_flops, work.executed_flops) == (2 * 10 * 2 * 16, 2 * 16 * 2 * 16)
    assert work.exps == 2 * 10


def test_past_counts_as_keys() -> None:
    """Keys of the cache are attended to as well."""
    work = model_work(bare(SPECS["past"]), {"batch_size": 1, "q_seq_len": 2, "kv_seq_len": 3, "past_seq_len": 4}).work
    assert work is not None
    assert work.exps == 2 * 2 * 7


def test_module_by_hand(module_model: OnnxModel) -> None:
    """Projections of 16 x 48 and 16 x 16 over 3 x 7 rows, and 2 heads of 8 over 7 x 7 pairs."""
    sizes = {axis: 3 if axis.startswith("batch") else 7 for axis in module_model.facts.axes}
    work = model_work(module_model, sizes).work
    assert work is not None
    projections = 2 * 21 * (16 * 48 + 16 * 16)
    attention = 3 * 2 * 49 * 2 * 16
    assert work.useful_flops == projections + attention
    assert work.exps == 3 * 2 * 49


def test_founding_use_by_hand(founding_model: OnnxModel) -> None:
    """encoder-self at batch 2, length 10: four projections of 512 x 512 and 8 heads of 64."""
    sizes = {axis: 2 if axis.startswith("batch") else 10 for axis in founding_model.facts.axes}
    work = model_work(founding_model, sizes).work
    assert work is not None
    assert work.useful_flops == 4 * 2 * 20 * 512 * 512 + 2 * 8 * 100 * 2 * 128
    case = site_case(founding_model, founding_model.sites[0], sizes)
    assert (case.batch_size, case.q_seq_len, case.kv_seq_len) == (2, 10, 10)


def test_forms_count_the_same(bare_model: OnnxModel, decomposed_model: OnnxModel) -> None:
    """The same attention is the same work in both forms: its own products are not counted twice."""
    sizes = {"batch_size": 2, "q_seq_len": 9, "kv_seq_len": 12}
    assert model_work(bare_model, sizes) == model_work(decomposed_model, sizes)


def test_weights_alone() -> None:
    """A MatMul with a constant weight is 2 rows K N; without attention there are no exponentials."""
    work = model_work(load_model(product(width=4)), {"batch_size": 6}).work
    assert work is not None
    assert (work.useful_flops, work.exps) == (2 * 6 * 4 * 4, 0)


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_counts_as_a_product(transposed: int) -> None:
    """A Gemm is the same product with or without a transposed weight."""
    import numpy as np

    weight = np.ones((5, 4) if transposed else (4, 5), np.float32)
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=transposed)]
    proto = model_of(nodes, {"x": ["batch_size", 4]}, {"y": ["batch_size", 5]}, {"w": weight})
    work = model_work(load_model(proto), {"batch_size": 3}).work
    assert work is not None
    assert work.useful_flops == 2 * 3 * 4 * 5


def test_unknown_shape_is_not_guessed() -> None:
    """If a shape does not follow from the inputs there is no count."""
    proto = onnx.load_from_string(product().SerializeToString())
    proto.graph.node.append(helper.make_node("Own", ["y"], ["o"], domain="own"))
    proto.graph.node.append(helper.make_node("MatMul", ["o", "w"], ["z"]))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    del proto.graph.output[0]
    assert model_work(load_model(proto), {"batch_size": 3}) == CountedWork(work=None)
