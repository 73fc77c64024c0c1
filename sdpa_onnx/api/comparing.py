"""Compare before and after: `compare`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sdpa_onnx.api.arguments import listed, listed_sizes
from sdpa_onnx.api.checks import read_given
from sdpa_onnx.api.models import load
from sdpa_onnx.api.record_list import RecordList
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.api.checks import Inputs
    from sdpa_onnx.core.compare.gate_limits import GateLimits
    from sdpa_onnx.core.records.gate_records import GateRecord
    from sdpa_onnx.graph.model import ModelSource, OnnxModel
    from sdpa_onnx.measure.deadline import Deadline
    from sdpa_onnx.workflows.compare.models import CompareOptions

__all__ = ["GateName", "compare"]

GateName = Literal["agreement", "graph", "memory", "time"]


def compare(
    base: "ModelSource",
    head: "ModelSource",
    *,
    runtimes: Sequence[str] = ("ort-cpu",),
    base_python: str | os.PathLike[str] | None = None,
    head_python: str | os.PathLike[str] | None = None,
    sizes: Mapping[str, int] | None = None,
    at: Sequence[Mapping[str, int]] = (),
    inputs: "Inputs | None" = None,
    seconds: float = 30.0,
    timeout: float = 600.0,
    margin: float = 5.0,
    more_nodes: float = 10.0,
    larger_file: float = 10.0,
    more_memory: float = 10.0,
    allow: Sequence[GateName] = (),
    skip: Sequence[GateName] = (),
    strict: bool = False,
    pinned: str | None = None,
    threads: int = 1,
    seed: int = 0,
    budget: float | None = None,
) -> "RecordList[GateRecord]":
    """Compare agreement, graph, memory and time of HEAD with BASE; only proven regressions fail.

    Args:
        base, head: Two models, judged and timed now, or two run folders or .json files of pytest-benchmark.
        runtimes: Models, like the next options up to `timeout`: names of runtimes.
        base_python, head_python: Python of the environment that runs this one; None = ours.
        sizes: Sizes of axes in every comparison; at: one comparison for each set of sizes.
        inputs: Arrays by input name or an .npz file, instead of drawn ones.
        seconds: Time budget of each timing; budget: of everything, and what does not fit is skipped.
        timeout: Seconds to wait for each answer of a runtime.
        margin, more_nodes, larger_file, more_memory: Allowed increase of time, nodes, file and memory, per cent.
        allow, skip: Gates that never fail, and gates that are not run.
        strict: Open rows fail too. pinned: Stored results: the arm that did not change; None = torch.

    Returns:
        One record per gate and case; `fails` is True for a regression.

    Raises:
        PlanError: If the two cannot be compared, or an option does not apply to them.
        ModelError, RecordFormatError: If a file cannot be read.
    """
    limits = _limits((margin, more_nodes, larger_file, more_memory), allow, skip, strict=strict)
    pythons = tuple(None if path is None else Path(path).absolute() for path in (base_python, head_python))
    models = _CompareRequest(
        runtimes=listed("runtimes", runtimes),
        pythons=(pythons[0], pythons[1]),
        sizes=sizes or {},
        at=listed_sizes("at", at),
        inputs=inputs,
        seconds=seconds,
        timeout=timeout,
        deadline=_deadline(budget),
        threads=threads,
        seed=seed,
    )
    return RecordList(_gates(base, head, limits, models, pinned))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompareRequest:
    """The options of `compare` for models."""

    runtimes: Sequence[str]
    pythons: tuple[Path | None, Path | None]
    sizes: Mapping[str, int]
    at: Sequence[Mapping[str, int]]
    inputs: "Inputs | None"
    seconds: float
    timeout: float
    deadline: "Deadline"
    threads: int
    seed: int

    @property
    def for_models(self) -> Mapping[str, object]:
        """Options that stored results do not have, by name."""
        base, head = self.pythons
        sizes = {"at": self.at, "sizes": self.sizes, "inputs": self.inputs}
        return {"base_python": base, "head_python": head, **sizes, "budget": self.deadline.budget_seconds}

    def options(self, base: "OnnxModel", limits: "GateLimits") -> "CompareOptions":
        """The options of the workflow."""
        from sdpa_onnx.measure.calibration import load_calibration
        from sdpa_onnx.measure.time_limit import LEAST_SECONDS, checked_seconds
        from sdpa_onnx.measure.timing_plan import TimingPlan
        from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
        from sdpa_onnx.workflows.check.check_options import CheckOptions
        from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME
        from sdpa_onnx.workflows.compare.models import CompareOptions

        if MODULE_RUNTIME in self.runtimes:
            raise PlanError(
                f"Runtime '{MODULE_RUNTIME}' runs a PyTorch module and not the model.", hint="Choose another runtime."
            )
        if self.inputs is not None and (self.sizes or self.at):
            raise PlanError("inputs already fixes the sizes.", hint="Leave out at and sizes.")
        return CompareOptions(
            runtimes=[name for name in pick_runtimes(list(self.runtimes)) if name != MODULE_RUNTIME],
            sizes=tuple(self.at),
            check=CheckOptions(
                sizes=dict(self.sizes), seed=self.seed, threads=self.threads, inputs=read_given(self.inputs, base)
            ),
            plan=TimingPlan(
                budget_seconds=checked_seconds("seconds", self.seconds, least=LEAST_SECONDS),
                seed=self.seed,
                extras=False,
                calibration=load_calibration(),
                deadline=self.deadline,
            ),
            limits=limits,
            pythons=self.pythons,
            patience_seconds=self.timeout,
        )


def _gates(
    base: "ModelSource", head: "ModelSource", limits: "GateLimits", request: _CompareRequest, pinned: str | None
) -> "list[GateRecord]":
    """The rows of the gates, for whatever is compared."""
    from sdpa_onnx.sweep.comparison_kind import ComparisonKind, kind_of
    from sdpa_onnx.sweep.stored_comparison import compare_stored_files, require_common

    paths = [Path(one) for one in (base, head) if isinstance(one, str | os.PathLike)]
    kind = kind_of(paths[0], paths[1]) if len(paths) == 2 else ComparisonKind.MODELS
    if kind is ComparisonKind.MODELS:
        _refuse({"pinned": pinned}, "stored results")
        from sdpa_onnx.measure.time_limit import interrupted_at
        from sdpa_onnx.workflows.compare.models import compare_models

        loaded = load(base)
        with interrupted_at(request.deadline):
            rows = compare_models(loaded, head, request.options(loaded, limits))
    else:
        _refuse(request.for_models, "models")
        rows = compare_stored_files(kind, paths[0], paths[1], limits, pinned)
    require_common(base, head, rows)
    return rows


def _deadline(budget: float | None) -> "Deadline":
    from sdpa_onnx.measure.time_limit import limited_to

    return limited_to(budget)


def _refuse(options: Mapping[str, object], owner: str) -> None:
    """Reject options that apply only to something else.

    Raises:
        PlanError: If one is given.
    """
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise PlanError(f"{given} applies only to {owner}.", hint=f"Leave out {given}.")


def _limits(
    percents: tuple[float, float, float, float], allow: Sequence[str], skip: Sequence[str], *, strict: bool
) -> "GateLimits":
    from sdpa_onnx.core.compare.gate_limits import GateLimits
    from sdpa_onnx.core.records.gate_records import Gate

    allow, skip = listed("allow", allow), listed("skip", skip)
    unknown = next((name for name in (*allow, *skip) if name not in {*Gate}), None)
    if unknown is not None:
        raise PlanError(f"There is no gate '{unknown}'.", hint=f"Known: {', '.join(Gate)}.")
    skipped = frozenset(map(Gate, skip))
    if len(skipped) == len(Gate):
        raise PlanError("skip names every gate, so nothing is left to compare.", hint="Leave one out.")
    margin, more_nodes, larger_file, more_memory = (percent / 100 for percent in percents)
    return GateLimits(
        margin=margin,
        more_nodes=more_nodes,
        larger_file=larger_file,
        more_memory=more_memory,
        allowed=frozenset(map(Gate, allow)),
        skipped=skipped,
        strict=strict,
    )
