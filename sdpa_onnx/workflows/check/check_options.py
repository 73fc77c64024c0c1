"""What to check of a model: sizes, inputs, threads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import LADDER

__all__ = ["CheckOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What to check of a model.

    Args:
        sizes: Size of every named axis.
        spreads: Logit spreads to run; a module is fed so that it reaches them.
        seed: Seed of the inputs.
        threads: Threads inside one operator.
        inputs: Given arrays by graph input name, instead of drawn ones.
        probes: Also run the structural probes of a bare attention.
    """

    sizes: Mapping[str, int]
    spreads: Sequence[float] = LADDER
    seed: int = 0
    threads: int = 1
    inputs: Mapping[str, NDArray[np.generic]] | None = None
    probes: bool = False
