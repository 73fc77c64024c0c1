"""Arrays on their way to an engine: every form of a type that numpy has, and types that it has not."""

import ml_dtypes
import numpy as np
import pytest

from sdpa_onnx.runtimes.array_files import from_bits, to_bits

_FORMS = {
    "plain": np.dtype(np.int64),
    "other bytes": np.dtype(">i8"),
    "with notes": np.dtype(np.int64, metadata={"from": "a package"}),
    "bool": np.dtype(bool),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@pytest.mark.parametrize("form", _FORMS)
def test_values_and_types_arrive(form: str) -> None:
    """An engine gets a type of numpy itself, and what it returns has the values and the type again."""
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(_FORMS[form])
    bits = to_bits({"x": array})
    assert bits["x"][0].dtype.isbuiltin == 1
    assert bits["x"][0].dtype.isnative
    found = from_bits(bits)["x"]
    assert found.dtype.name == array.dtype.name
    assert np.array_equal(found, array)
