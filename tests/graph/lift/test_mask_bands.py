"""Prove causality and windows of masks that exporters write; masks that are only almost so must not count as such."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.masks.band_trial import NOTHING_PROVED, MaskReading, Proved
from sdpa_onnx.graph.lift.masks.mask_bands import MaskBands

CAUSAL = WindowBounds(right=0)
EXACTLY_CAUSAL = MaskReading(proved=Proved.EXACTLY_BAND, band=CAUSAL)
CAUSAL_AND_MORE = MaskReading(proved=Proved.BAND_AND_MORE, band=CAUSAL)
INPUTS = (
    "int64[batch, length] ids, int64[batch, length] padding, bool[length, length] given, float[length, length] bias"
)
# i and j: positions of queries (column) and keys (row) along 'length', which is taken from the shape of ids.
POSITIONS = """
    n = Shape <start: int = 1, end: int = 2> (ids)
    scalar = Squeeze (n)
    zero = Constant <value_int: int = 0> ()
    one = Constant <value_int: int = 1> ()
    at = Range (zero, scalar, one)
    first = Constant <value_ints: ints = [0]> ()
    last = Constant <value_ints: ints = [-1]> ()
    j = Unsqueeze (at, first)
    i = Unsqueeze (at, last)
    middle = Constant <value_ints: ints = [1, 2]> ()
    kept = Cast <to: int = 9> (padding)
    padded = Unsqueeze (kept, middle)
    nothing = Constant <value_float: float = 0.0> ()
    lowest = Constant <value_float: float = -3.4028234663852886e38> ()
"""


def judge(
    mask: str,
    *,
    opset: int = 18,
    inputs: str = INPUTS,
    constants: Mapping[str, np.ndarray] | None = None,
    positions: str = POSITIONS,
) -> MaskReading:
    """What is proved of the value 'mask' that these nodes compute."""
    proto = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : {opset}]>
        g ({inputs}) => (float[batch, length] unused) {{
            {positions}
            {mask}
            unused = Cast <to: int = 1> (padding)
        }}""")
    for name, array in {"infinite": np.float32(-np.inf), **(constants or {})}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    search = GraphFacts(ir.from_proto(proto))
    values = {value.name: value for node in search.graph for value in node.outputs} | dict(search.graph.initializers)
    values |= {value.name: value for value in search.graph.inputs}
    return MaskBands(search).reading(values["mask"], values.get("key"))


EXACT = {
    "less-or-equal": "mask = LessOrEqual (j, i)",
    "not-greater": "later = Greater (j, i) mask = Not (later)",
    "both-ways": "one_way = GreaterOrEqual (i, j) other = LessOrEqual (j, i) mask = And (one_way, other)",
    "float": "seen = LessOrEqual (j, i) mask = Where (seen, nothing, infinite)",
    "float-lowest": "seen = LessOrEqual (j, i) mask = Where (seen, nothing, lowest)",
    "trilu": """
        whole = Concat <axis: int = 0> (n, n)
        all = ConstantOfShape <value: tensor = bool[1] {1}> (whole)
        mask = Trilu <upper: int = 0> (all)""",
    "square-subsequent": """
        whole = Concat <axis: int = 0> (n, n)
        full = Expand (infinite, whole)
        mask = Trilu <upper: int = 1> (full, one)""",
    "difference": """
        seen = LessOrEqual (j, i)
        number = Cast <to: int = 1> (seen)
        unit = Constant <value_float: float = 1.0> ()
        hidden = Sub (unit, number)
        mask = Mul (hidden, lowest)""",
}
MORE = {
    "padding": "seen = LessOrEqual (j, i) mask = And (seen, padded)",
    "padding-infinite": "seen = LessOrEqual (j, i) both = And (seen, padded) mask = Where (both, nothing, infinite)",
    "given-too": "seen = LessOrEqual (j, i) mask = And (given, seen)",
    "bias": "seen = LessOrEqual (j, i) causal = Where (seen, nothing, infinite) mask = Add (bias, causal)",
    "strictly-earlier": "mask = Less (j, i)",
    "minimum": """
        seen = LessOrEqual (j, i)
        causal = Where (seen, nothing, infinite)
        other = Where (given, nothing, lowest)
        mask = Min (other, causal)""",
}
LOWEST_ONLY = {
    "padding-lowest": "seen = LessOrEqual (j, i) both = And (seen, padded) mask = Where (both, nothing, lowest)",
    "two-lowest": """
        seen = LessOrEqual (j, i)
        causal = Where (seen, nothing, lowest)
        other = Where (padded, nothing, lowest)
        mask = Add (causal, other)""",
}
# Each is causal at many sizes, for some contents, or nearly.
NOT = {
    "padding-only": "mask = And (padded, padded)",
    "either": "seen = LessOrEqual (j, i) mask = Or (seen, padded)",
    "content": "mask = And (given, given)",
    "content-decides": """
        seen = LessOrEqual (j, i)
        all = Not (seen)
        every = Or (seen, all)
        some = ReduceMax (padding)
        chosen = Cast <to: int = 9> (some)
        mask = Where (chosen, seen, every)""",
    "position-from-content": """
        position = Unsqueeze (padding, middle)
        mask = LessOrEqual (j, position)""",
    "from-length-9-not": """
        limit = Constant <value_int: int = 9> ()
        long = GreaterOrEqual (scalar, limit)
        seen = LessOrEqual (j, i)
        mask = Or (seen, long)""",
    "only-below-300": """
        limit = Constant <value_int: int = 300> ()
        beyond = GreaterOrEqual (j, limit)
        seen = LessOrEqual (j, i)
        mask = Or (seen, beyond)""",
    "minus-one-thousand": """
        thousand = Constant <value_float: float = -1000.0> ()
        seen = LessOrEqual (j, i)
        mask = Where (seen, nothing, thousand)""",
    "one-row": "only = Constant <value_int: int = 0> () mask = LessOrEqual (j, only)",
    "one-column": "only = Constant <value_int: int = 0> () mask = LessOrEqual (only, i)",
    "a-subgraph": "mask = Mystery (j, i)",
}


@pytest.mark.parametrize("mask", EXACT.values(), ids=EXACT)
def test_masks_that_hide_the_later_keys_only(mask: str) -> None:
    """They may be removed: is_causal is equivalent."""
    assert judge(mask) == EXACTLY_CAUSAL


@pytest.mark.parametrize("mask", MORE.values(), ids=MORE)
def test_masks_that_hide_the_later_keys_and_more(mask: str) -> None:
    """They are kept in addition to is_causal, whatever else they hide."""
    assert judge(mask) == CAUSAL_AND_MORE


@pytest.mark.parametrize("mask", LOWEST_ONLY.values(), ids=LOWEST_ONLY)
def test_a_finite_lowest_and_padding(mask: str) -> None:
    """A query whose keys are all padded averages over later keys too, which is_causal would change."""
    assert judge(mask) == MaskReading(proved=Proved.LOWEST_AND_MORE, band=CAUSAL)


@pytest.mark.parametrize("mask", NOT.values(), ids=NOT)
def test_masks_that_are_not_always_causal(mask: str) -> None:
    """One entry, one size or one input content that shows a later key is enough."""
    assert judge(mask) == NOTHING_PROVED


def triangle(size: int) -> np.ndarray:
    return np.tril(np.ones((1, 1, size, size), np.bool_))


SLICED = """
    two = Constant <value_ints: ints = [2, 3]> ()
    start = Constant <value_ints: ints = [0, 0]> ()
    end = Concat <axis: int = 0> (n, n)
    mask = Slice (buffer, start, end, two)
"""


def test_a_buffer_cut_to_the_length() -> None:
    """GPT-2's triangle of the maximum length, from which the graph slices the corner."""
    assert judge(SLICED, constants={"buffer": triangle(200)}) == EXACTLY_CAUSAL


def test_a_number_too_large_to_be_tried() -> None:
    """A window of 5000 shows at none of the tried lengths, so the mask is kept."""
    wide = """
        seen = LessOrEqual (j, i)
        width = Constant <value_int: int = 5000> ()
        back = Sub (i, j)
        near = Less (back, width)
        mask = And (seen, near)"""
    assert judge(wide) == CAUSAL_AND_MORE


def test_a_buffer_with_one_wrong_entry_at_its_end() -> None:
    """An entry that only the longest input uses is found."""
    buffer = triangle(200)
    buffer[0, 0, 198, 199] = True
    next_key = MaskReading(proved=Proved.BAND_AND_MORE, band=WindowBounds(right=1))
    assert judge(SLICED, constants={"buffer": buffer}) == next_key


def test_a_constant_mask() -> None:
    """A mask that the exporter baked in has one size, which is tested; one query alone proves nothing."""
    mask = np.triu(np.full((6, 6), -np.inf, np.float32), 1)
    assert judge("", constants={"mask": mask}) == EXACTLY_CAUSAL
    mask[2, 3] = 0
    assert judge("", constants={"mask": mask}) == MaskReading(proved=Proved.BAND_AND_MORE, band=WindowBounds(right=1))
    assert judge("", constants={"mask": np.zeros((1, 1), np.float32)}) == NOTHING_PROVED


def test_lengths_of_two_inputs() -> None:
    """Queries and keys of different lengths: causal if aligned to the first key, not if aligned to the last."""
    inputs = "int64[batch, length] ids, float[batch, keys, 8] memory, int64[batch, length] padding"
    seen = """
        m = Shape <start: int = 1, end: int = 2> (memory)
        count = Squeeze (m)
        all = Range (zero, count, one)
        {shift}
        mask = LessOrEqual (place, i)"""
    upper_left = seen.format(shift="place = Unsqueeze (all, first)")
    lower_right = seen.format(shift="past = Sub (count, scalar) new = Sub (all, past) place = Unsqueeze (new, first)")
    assert judge(upper_left, inputs=inputs) == CAUSAL_AND_MORE  # more queries than columns: the mask may be short
    assert judge(f"key = Identity (memory) {upper_left}", inputs=inputs) == EXACTLY_CAUSAL
    assert judge(lower_right, inputs=inputs) == NOTHING_PROVED


def test_a_mask_that_hides_nothing() -> None:
    """An Expand of True, as dynamo writes for a ViT, may be removed unless it is short or depends on content."""
    inputs = "int64[batch, length] ids, float[batch, length, 8] memory, int64[batch, length] padding"
    whole = "key = Identity (memory) whole = Concat <axis: int = 0> (n, {keys}) mask = Expand (yes, whole)"
    yes = {"yes": np.bool_(True)}
    assert judge(whole.format(keys="n"), inputs=inputs, constants=yes) == MaskReading(proved=Proved.NOTHING_HIDDEN)
    ones = whole.format(keys="one_key").replace("whole =", "one_key = Constant <value_ints: ints = [1]> () whole =", 1)
    assert judge(ones, inputs=inputs, constants=yes) == NOTHING_PROVED
    content = "key = Identity (memory) whole = Expand (yes, n) mask = And (whole, padded)"
    assert judge(content, inputs=inputs, constants=yes) == NOTHING_PROVED


def test_sizes_through_values_that_no_shape_is_stated_of() -> None:
    """TorchScript takes the length from the shape of reshaped weights, whose contents are not needed."""
    mask = """
        rows = Gather (table, ids)
        flat = Constant <value_ints: ints = [0, -1, 2, 4]> ()
        heads = Reshape (rows, flat)
        turned = Transpose <perm: ints = [0, 2, 1, 3]> (heads)
        sizes = Shape (turned)
        two = Constant <value_int: int = 2> ()
        long = Gather (sizes, two)
        places = Range (zero, long, one)
        column = Unsqueeze (places, last)
        mask = GreaterOrEqual (column, j)"""
    assert judge(mask, constants={"table": np.zeros((11, 8), np.float32)}) == EXACTLY_CAUSAL


def test_the_length_comes_first() -> None:
    """Torch modules use (length, batch, width) by default; every entry at every length is checked there too."""
    inputs = "float[length, batch, 8] rows, int64[batch, length] padding"
    positions = POSITIONS.replace("<start: int = 1, end: int = 2> (ids)", "<start: int = 0, end: int = 1> (rows)")
    window = "far = Constant <value_int: int = 100> () back = Sub (i, j) near = Less (back, far)"
    assert judge("mask = LessOrEqual (j, i)", inputs=inputs, positions=positions) == EXACTLY_CAUSAL
    seen = f"{window} seen = LessOrEqual (j, i) mask = And (seen, near)"
    window = MaskReading(proved=Proved.EXACTLY_BAND, band=WindowBounds(left=99, right=0))
    assert judge(seen, inputs=inputs, positions=positions) == window
