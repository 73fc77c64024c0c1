"""Checks of models and runtimes: `verify`, `conformance` and `saturation`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sdpa_onnx.api.arguments import listed
from sdpa_onnx.api.record_list import RecordList
from sdpa_onnx.core.attention.spec import Dtype, ScaleRule

if TYPE_CHECKING:
    import os

    import numpy as np
    from numpy.typing import NDArray

    from sdpa_onnx.core.records.records import ConformanceRecord, Record, SaturationRecord
    from sdpa_onnx.graph.model import ModelSource, OnnxModel

    # Arrays by input name, or an .npz file with them.
    Inputs = Mapping[str, NDArray[np.generic]] | str | os.PathLike[str]

__all__ = ["conformance", "saturation", "verify"]


def verify(
    model: "ModelSource",
    *,
    runtimes: Sequence[str] = ("ort-cpu",),
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    prove: bool = False,
    against: object = None,
    inputs: "Inputs | None" = None,
    timeout: float | None = None,
    threads: int = 1,
) -> "RecordList[Record]":
    """Verify every attention of a model on runtimes, and check that its dynamic axes can change.

    Args:
        model: The model.
        runtimes: Names of runtimes, see `sdpa-onnx runtimes`.
        sizes: Sizes of named axes; others get defaults.
        seed: Seed of the inputs.
        prove: Also plant every kind of fault, with one record each that shows whether these inputs detect it.
        against: Also compare the outputs with this `torch.nn.Module`, or its name such as "package.module:Class", see
            `export`.
        inputs: Arrays by input name, or the path of an .npz file, instead of drawn inputs; fixes the sizes.
        timeout: Run each runtime in a process of its own, and wait this many seconds for each answer; None = in this
            process, without a limit.
        threads: Threads inside one operator.

    Returns:
        One record per check of an attention, and one per runtime for the dynamic axes. `outcome` holds
        the result, also if a runtime fails on the model.

    Raises:
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is unknown or not installed.
        ModelError: If nothing in the model can be verified.
        PlanError: If a size names no axis, an input does not fit, there is no such module, or it does not accept the
            inputs of the model.
    """
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.verify.load_against import load_against
    from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file

    loaded = load_against(model, against)
    check = CheckOptions(sizes=dict(sizes or {}), seed=seed, threads=threads, inputs=read_given(inputs, loaded))
    names = pick_runtimes(list(listed("runtimes", runtimes)))
    extras = VerifyExtras(prove=prove, patience_seconds=timeout)
    return RecordList(verify_file(loaded, names, check, target=str(loaded.path or "model"), extras=extras))


def saturation(
    *,
    head_dims: Sequence[int] = (16, 64, 256, 1024),
    kv_seq_lens: Sequence[int] = (64, 256, 1024, 4096),
    scale_rules: Sequence[ScaleRule] = (ScaleRule.NONE, ScaleRule.INVERSE_SQRT),
    sigma: float = 1.0,
    dtype: Dtype = Dtype.FLOAT32,
    runtime: str = "ort-cpu",
    draws: int = 16,
    rows: int = 128,
    module: bool = True,
    threads: int = 1,
    seed: int = 0,
) -> "RecordList[SaturationRecord]":
    """Measure what dividing by sqrt(d_k) does to the softmax, its weights and its gradients, next to the exact theory.

    Args:
        head_dims: Widths of a head, d_k.
        kv_seq_lens: Numbers of keys. Every combination of width, length and rule is measured.
        scale_rules: Scales of QK^T.
        sigma: Standard deviation of the components of query and key.
        dtype: Element type of the exported graph.
        runtime: Runtime that runs the graph.
        draws: Independent draws of the keys, at least 4.
        rows: Queries per draw.
        module: Also measure `torch.nn.MultiheadAttention` as initialised.
        threads: Threads inside one operator.
        seed: Seed of the draws.

    Returns:
        One record per combination, with every measure and its prediction; `outcome` is DISAGREES if a measure deviates
        from its prediction by more than chance allows.

    Raises:
        PlanError: If a value allows no measurement.
        RuntimeNotFoundError, RuntimeUnavailableError: If the runtime is unknown or not installed.
    """
    from sdpa_onnx.workflows.saturation.measure import SaturationPlan, module_check
    from sdpa_onnx.workflows.saturation.measure import saturation as measure

    plan = SaturationPlan(
        head_dims=tuple(dict.fromkeys(listed("head_dims", head_dims))),
        kv_seq_lens=tuple(dict.fromkeys(listed("kv_seq_lens", kv_seq_lens))),
        scale_rules=tuple(dict.fromkeys(map(ScaleRule, listed("scale_rules", scale_rules)))),
        sigma=sigma,
        dtype=Dtype(dtype),
        rows=rows,
        draws=draws,
        seed=seed,
        threads=threads,
        runtime=runtime,
    )
    found = RecordList(measure(plan))
    if module:
        found += module_check(seed=seed, threads=threads, runtime=runtime)
    return found


def conformance(
    *,
    runtimes: Sequence[str] = ("ort-cpu",),
    only: Sequence[str] = (),
    operators: Sequence[str] = (),
    opsets: Sequence[int] = (),
    dtypes: Sequence[str] = (),
    seed: int = 0,
    threads: int = 1,
    timeout: float = 20.0,
) -> "RecordList[ConformanceRecord]":
    """Test runtimes on each feature of the attention operators, each in a process of its own.

    Args:
        runtimes: Names of runtimes.
        only: Names of features or groups, see `sdpa-onnx conformance --list`; () = all, like the next three.
        operators: Operators.
        opsets: Opsets.
        dtypes: Element types.
        seed: Seed of the inputs.
        threads: Threads inside one operator.
        timeout: Seconds to wait for a row; it is repeated once with three times as many.

    Returns:
        One record per runtime, feature, operator, opset and element type; `verdict` is right, wrong, suspicious,
        refused or crashed.

    Raises:
        PlanError: If a name is unknown or nothing is selected.
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is unknown or not installed.
    """
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.conformance import conformance as rows_of

    found: RecordList[ConformanceRecord] = RecordList()
    for runtime in pick_runtimes(list(listed("runtimes", runtimes))):
        found += rows_of(
            runtime,
            only=listed("only", only),
            operators=listed("operators", operators),
            opsets=listed("opsets", opsets),
            dtypes=listed("dtypes", dtypes),
            seed=seed,
            threads=threads,
            timeout_seconds=timeout,
        )
    return found


def read_given(inputs: "Inputs | None", model: "OnnxModel") -> "Mapping[str, NDArray[np.generic]] | None":
    """Inputs of the caller that fit a model; None = they are drawn.

    Raises:
        PlanError: If they do not fit.
    """
    if inputs is None:
        return None
    from sdpa_onnx.workflows.check.given_arrays import checked_inputs, read_inputs

    if isinstance(inputs, Mapping):
        return checked_inputs(dict(inputs), model, source="inputs")
    return read_inputs(Path(inputs), model)
