"""Prove that the axes of a model may change: run it at sizes never traced, judge each time.

An axis that is declared dynamic and does not behave so is named, with the node
where the runtime stops if it says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from sdpa_onnx.core.records import AgreementRecord, BakedAxis, Outcome
from sdpa_onnx.errors import ExportError, SessionError
from sdpa_onnx.graph.model import TRACED_KEY, OnnxModel
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.runtimes.ort_errors import failing_node
from sdpa_onnx.workflows.checked import Check
from sdpa_onnx.workflows.feeds import axis_names
from sdpa_onnx.workflows.verify import Expectations, check_model

__all__ = ["AxesProof", "prove_axes", "size_sets", "traced_sizes"]

# 1, 2, primes, a power of two and something larger than any usual sample; neighbours differ, so q != kv.
_LENGTHS = (1, 2, 13, 64, 31, 97, 5, 128)
_BATCHES = (1, 3, 2, 5)
# How many size sets an export is run at; axes of one name always change together.
_SETS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AxesProof:
    """What running at other sizes showed.

    Args:
        dynamic_axes: Names of the axes that may change.
        baked: Axes that do not really change.
        failure: Why it is not right at the sizes tried, if that is no axis's fault; "" if it is right.
        sizes_tried: Size sets that were run.
        records: The judgements on the way.
    """

    dynamic_axes: tuple[str, ...]
    baked: tuple[BakedAxis, ...] = ()
    failure: str = ""
    sizes_tried: int
    records: tuple[AgreementRecord, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """OK if every axis was proved."""
        return Outcome.DISAGREES if self.baked or self.failure else Outcome.OK

    @property
    def reason(self) -> str:
        """What is wrong, one sentence; "" if nothing is."""
        parts = [f"axis '{axis.axis}' is fixed" + (f" at '{axis.node}'" if axis.node else "") for axis in self.baked]
        return f"{'; '.join(parts)} ({self.baked[0].evidence})" if self.baked else self.failure


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why one size set failed."""

    evidence: str
    node: str


def size_sets(axes: Sequence[str], *, count: int = _SETS) -> list[dict[str, int]]:
    """Choose sizes for named axes: 1, 2, primes, larger ones, and no two lengths alike.

    Example:
        >>> size_sets(["batch_size", "q_seq_len", "kv_seq_len"], count=2)
        [{'batch_size': 1, 'q_seq_len': 1, 'kv_seq_len': 64}, {'batch_size': 3, 'q_seq_len': 2, 'kv_seq_len': 31}]
    """
    sets = []
    for number in range(count):
        sizes = {}
        for position, axis in enumerate(axes):
            if axis.startswith("batch"):
                sizes[axis] = _BATCHES[number % len(_BATCHES)]
            else:
                sizes[axis] = _LENGTHS[(number + 3 * (position - 1)) % len(_LENGTHS)]
        sets.append(sizes)
    return sets


def traced_sizes(model: OnnxModel) -> dict[str, int] | None:
    """Sizes of the sample that the model was traced at, if our exporter noted them."""
    text = model.ir.metadata_props.get(TRACED_KEY)
    return msgspec.json.decode(text, type=dict[str, int]) if text else None


def prove_axes(
    model: OnnxModel,
    runtime: Runtime,
    *,
    target: str,
    traced: Mapping[str, int] | None = None,
    count: int = _SETS,
    seed: int = 0,
    on_size: Callable[[int, int], None] | None = None,
) -> AxesProof:
    """Run a model at sizes never traced and judge every attention each time.

    Args:
        model: The model; its axes are read from its inputs.
        runtime: Where to run it.
        target: Name for the records.
        traced: Sizes it was exported at, where every change of one axis starts.
        count: Size sets.
        seed: Seed of the inputs.
        on_size: Told (done, of) after each size set, for progress.
    """
    axes = axis_names(model)
    trial = _Trial(model=model, runtime=runtime, target=target, seed=seed)
    records: list[AgreementRecord] = []
    failures: list[tuple[dict[str, int], _Failure]] = []
    good = [dict(traced)] if traced else []
    tried = size_sets(axes, count=count) if axes else []
    for number, sizes in enumerate(tried):
        failure = trial.run(sizes, records)
        if failure is not None:
            failures.append((sizes, failure))
        elif _says_something(sizes):
            good.append(sizes)
        if on_size is not None:
            on_size(number + 1, len(tried))
    proof = AxesProof(dynamic_axes=axes, sizes_tried=len(tried), records=tuple(records))
    if not failures:
        return proof
    working = next((sizes for sizes in good if trial.run(sizes, []) is None), None)
    sizes, first = failures[-1]
    if working is None:
        return replace(proof, failure=f"It is wrong wherever it was tried, e.g. at {_words(sizes)}: {first.evidence}")
    baked = _Isolation(trial=trial, working=working).baked(tried)
    if baked:
        # A change of one axis may pass the runtime's own checks where a change of all did not.
        node = next((failure.node for _, failure in failures if failure.node), "")
        named = tuple(axis if axis.node else msgspec.structs.replace(axis, node=node) for axis in baked)
        return replace(proof, baked=named)
    return replace(proof, failure=f"It is right at {_words(working)} and wrong at {_words(sizes)}: {first.evidence}")


def _says_something(sizes: Mapping[str, int]) -> bool:
    """Whether a right result means anything: with one key the softmax is 1 whatever the scores are."""
    return all(size > 1 for axis, size in sizes.items() if not axis.startswith("batch"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One model on one runtime, to be run at many sizes; the module's float64 copy is made once."""

    model: OnnxModel
    runtime: Runtime
    target: str
    seed: int
    shared: Expectations = field(default_factory=Expectations)

    def run(self, sizes: Mapping[str, int], records: list[AgreementRecord]) -> _Failure | None:
        """Run one size set and add its records; None if everything is right."""
        check = Check(sizes=dict(sizes), spreads=(1.0,), seed=self.seed)
        try:
            found = check_model(self.model, self.runtime, check, target=self.target, expectations=self.shared)
        except SessionError as error:
            return _Failure(str(error), failing_node(str(error.__cause__ or error)) or "")
        except ExportError as error:
            return _Failure(str(error), "")
        records.extend(found)
        wrong = next((record for record in found if record.outcome is Outcome.DISAGREES), None)
        if wrong is None:
            return None
        # Some sites are attentions, others outputs of the whole graph, which is no node.
        return _Failure(wrong.diagnosis, "" if wrong.site.startswith("end:") else wrong.site)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Isolation:
    """Sizes that work, from which one axis at a time is changed."""

    trial: _Trial
    working: Mapping[str, int]

    def baked(self, tried: Sequence[Mapping[str, int]]) -> tuple[BakedAxis, ...]:
        """Axes that work at no other size. One that fails at some sizes only is no baked axis but a fault there."""
        found = (self._baked(axis, [sizes[axis] for sizes in tried]) for axis in self.working)
        return tuple(axis for axis in found if axis is not None)

    def _baked(self, axis: str, tried: Sequence[int]) -> BakedAxis | None:
        failures: list[tuple[int, _Failure]] = []
        others = [size for size in dict.fromkeys(tried) if size != self.working[axis] and _says_something({axis: size})]
        for size in others:
            changed = {**self.working, axis: size}
            failure = self.trial.run(changed, [])
            if failure is None:
                return None
            failures.append((size, failure))
        if not failures:
            return None
        size, failure = max(failures, key=lambda found: bool(found[1].node))
        evidence = f"{axis} {self.working[axis]} works, {size} does not: {failure.evidence}"
        return BakedAxis(axis=axis, node=failure.node, evidence=evidence)


def _words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())
