"""Time models, paired and in worker processes: `bench`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sdpa_onnx.api.arguments import listed, listed_sizes
from sdpa_onnx.api.checks import read_given
from sdpa_onnx.api.record_list import RecordList
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.api.checks import Inputs
    from sdpa_onnx.core.records.records import TimingRecord
    from sdpa_onnx.graph.model import ModelSource, OnnxModel
    from sdpa_onnx.measure.timing_plan import TimingPlan
    from sdpa_onnx.workflows.bench.arms import ArmChoice

__all__ = ["CacheName", "bench"]

CacheName = Literal["auto", "warm", "cold"]

# The name of a model that is given without one.
_ONE_MODEL = "model"


def bench(
    models: "Mapping[str, ModelSource] | ModelSource",
    *,
    runtime: str | None = None,
    sizes: Mapping[str, int] | None = None,
    threads: int | Sequence[int] = 1,
    seconds: float = 30.0,
    runtimes: Sequence[str] = ("ort-cpu",),
    forms: Sequence[str] = (),
    options: Sequence[Mapping[str, str]] = (),
    pythons: Sequence[str | os.PathLike[str]] = (),
    at: Sequence[Mapping[str, int]] = (),
    inputs: "Inputs | None" = None,
    baseline: str | None = None,
    blocks: int = 80,
    cache: CacheName = "auto",
    margin: float | None = None,
    timeout: float = 600.0,
    seed: int = 0,
    against: object = None,
    budget: float | None = None,
    nodes: bool = False,
) -> "RecordList[TimingRecord]":
    """Time models, runtimes, forms and settings against each other in worker processes, interleaved.

    Every combination is an arm. The outputs of each arm are judged before it is timed.

    Args:
        models: Models by name, or one model; all have the same inputs.
        runtime: The same as `runtimes` with one name.
        sizes: Sizes of named axes; others are 1 for a batch and 512 for a length.
        threads: Threads inside one operator, one number or several.
        seconds: Time budget of a comparison; the first four launches always run, even if they exceed it.
        runtimes: Names; "torch" runs the module that a model was exported from, or its attention.
        forms: Forms to convert every model to, or "as-is".
        options, pythons: Settings of the runtime, and interpreters with other versions: each is one more arm.
        at: One comparison for each set of sizes.
        inputs: Arrays by input name or an .npz file, instead of drawn ones.
        baseline: The arm that ratios refer to, or a word of its name; None = torch, else the first.
        blocks: Most blocks of a launch; cache: whether calls find their inputs in the processor's caches.
        margin: Measure until a slow-down of so many per cent is confirmed or ruled out.
        timeout: Seconds to wait for each answer of a runtime.
        against: A `torch.nn.Module` or its name, see `export`: timed too, in eager mode and compiled.
        budget: Seconds for everything, starting and judging included; what does not fit is skipped, and an arm that
            was not even known by then has no record. None = no limit.
        nodes: Also measure the time of each node, where a runtime can report it.

    Returns:
        One record per arm and comparison; `verdict` classifies its ratio. An arm that does not run has the `reason`,
        and None for the ratio and every other figure; an arm with wrong outputs has a warning.

    Raises:
        PlanError: If the models cannot be compared, or a name or option is wrong.
    """
    plan = _plan(seconds, blocks, margin, cache, seed, budget, nodes=nodes)
    named = _by_name(models)
    names = listed("runtimes", runtimes) if runtime is None else (runtime,)
    choice = _choice(names, forms, options, threads, pythons, timeout)
    wanted = _Request(sizes=sizes or {}, at=listed_sizes("at", at), inputs=inputs, baseline=baseline, against=against)
    return _timed(named, choice, plan, wanted)


def _by_name(models: "Mapping[str, ModelSource] | ModelSource") -> "Mapping[str, ModelSource]":
    """The models by name.

    Raises:
        PlanError: If they are a list, which has no names, or None.
    """
    given: object = models  # by a caller without type checks
    if given is None or isinstance(given, list | tuple):
        found = "None" if given is None else "a list without names"
        raise PlanError(
            f"models is {found}.", hint="Give one model, or several by name: {'a': 'a.onnx', 'b': 'b.onnx'}."
        )
    return models if isinstance(models, Mapping) else {_ONE_MODEL: models}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What to time the arms at, and against which of them."""

    sizes: Mapping[str, int]
    at: Sequence[Mapping[str, int]]
    inputs: "Inputs | None"
    baseline: str | None
    against: object

    def load(self, model: "ModelSource") -> "OnnxModel":
        """A model with the module that it is timed against.

        Raises:
            PlanError: If there is no such module.
        """
        from sdpa_onnx.workflows.verify.load_against import load_against

        return load_against(model, self.against)


def _choice(
    runtimes: tuple[str, ...],
    forms: Sequence[str],
    options: Sequence[Mapping[str, str]],
    threads: int | Sequence[int],
    pythons: Sequence[str | os.PathLike[str]],
    timeout: float,
) -> "ArmChoice":
    """The arms.

    Raises:
        PlanError: If there is no such form.
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is not available.
    """
    from sdpa_onnx.core.attention.forms import Form
    from sdpa_onnx.workflows.bench.arms import AS_IS, ArmChoice
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes

    forms = listed("forms", forms)
    unknown = next((form for form in forms if form not in {AS_IS, *Form}), None)
    if unknown is not None:
        raise PlanError(f"There is no form '{unknown}'.", hint=f"Known: {AS_IS}, {', '.join(Form)}.")
    return ArmChoice(
        runtimes=pick_runtimes(list(runtimes)),
        forms=tuple(dict.fromkeys(forms)),
        options=listed("options", options),
        threads=(threads,) if isinstance(threads, int) else tuple(dict.fromkeys(listed("threads", threads))),
        pythons=tuple(dict.fromkeys(Path(path).absolute() for path in listed("pythons", pythons))),
        patience_seconds=timeout,
    )


def _plan(
    seconds: float,
    blocks: int,
    margin: float | None,
    cache: CacheName,
    seed: int,
    budget: float | None,
    *,
    nodes: bool,
) -> "TimingPlan":
    """How much to measure; the time limit on everything begins here."""
    from sdpa_onnx.measure.calibration import load_calibration
    from sdpa_onnx.measure.time_limit import LEAST_SECONDS, checked_seconds, limited_to
    from sdpa_onnx.measure.timing_plan import Cache, TimingPlan

    return TimingPlan(
        blocks=blocks,
        least_blocks=min(blocks, TimingPlan().least_blocks),
        budget_seconds=checked_seconds("seconds", seconds, least=LEAST_SECONDS),
        margin=None if margin is None else margin / 100,
        cache=Cache(cache),
        calibration=load_calibration(),
        seed=seed,
        deadline=limited_to(budget),
        nodes=nodes,
    )


def _timed(
    models: "Mapping[str, ModelSource]", choice: "ArmChoice", plan: "TimingPlan", request: _Request
) -> "RecordList[TimingRecord]":
    """Judge and time the arms of models in memory."""
    from sdpa_onnx.workflows.bench.bench_files import BenchTask
    from sdpa_onnx.workflows.bench.within_limit import time_within_limit
    from sdpa_onnx.workflows.check.check_options import CheckOptions

    if not models:
        raise PlanError("There is no model to time.", hint="Give at least one.")
    if request.inputs is not None and (request.at or request.sizes):
        raise PlanError("inputs already fixes the sizes.", hint="Leave out at and sizes.")
    loaded = {Path(name): request.load(model) for name, model in models.items()}
    first = next(iter(loaded.values()))
    task = BenchTask(
        paths=tuple(loaded),
        loaded=loaded,
        against="" if request.against is None else "module",
        choice=choice,
        check=CheckOptions(sizes={}, seed=plan.seed, inputs=read_given(request.inputs, first)),
        sizes=tuple({**request.sizes, **one} for one in request.at) or (request.sizes,),
        baseline=request.baseline,
        plan=plan,
        patience_seconds=choice.patience_seconds or 0.0,
    )
    timed = time_within_limit(task)
    found = RecordList([] if timed.prepared is None else timed.prepared.contest.refused)
    for benched in timed.results:
        found += benched.records
    return _named(found, list(models)) if len(choice.runtimes) == 1 else found


def _named(records: "RecordList[TimingRecord]", models: Sequence[str]) -> "RecordList[TimingRecord]":
    """A lone arm under the name of its model, which the caller chose, instead of that of its runtime."""
    import msgspec

    if len({record.arm for record in records}) > 1:
        return records
    return RecordList(msgspec.structs.replace(record, arm=models[0], baseline=models[0]) for record in records)
