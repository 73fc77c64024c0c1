"""Runs of one session at planned sizes, and the shortest sequence of runs after which a run is wrong.

A session has a fault of state if a run is right in a fresh session and wrong after other runs. Judges nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.model_facts import ModelFacts
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError

__all__ = ["LastRun", "SessionRun", "after_words", "planned_sizes", "run_after", "sizes_of", "smallest_sequence"]

_Run = TypeVar("_Run")

# A prime above the usual tile of 64 needs a second, ragged tile; longer runs show no other fault of state.
_LONGEST = 67
_BATCH = 2


class _Scale(Enum):
    """How long the axes of one planned run are."""

    ONE = "one"
    SMALL = "small"
    LARGE = "large"
    EMPTY = "empty"


# One key comes first: sizes of 1 are what a first run may fix. The small run comes back after every other one.
_PLAN = (_Scale.ONE, _Scale.SMALL, _Scale.LARGE, _Scale.SMALL, _Scale.ONE, _Scale.EMPTY, _Scale.SMALL, _Scale.LARGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRun:
    """One run of a session: the sizes of the model's axes, and its inputs by graph input name."""

    sizes: Mapping[str, int]
    feeds: Feeds

    @classmethod
    def of(cls, model: OnnxModel, feeds: Mapping[str, NDArray[np.generic]]) -> Self:
        """A run on these inputs, with the sizes that their shapes give to the named axes of the model."""
        return cls(
            sizes=sizes_of(model, feeds), feeds={name: feeds[name] for name in model.input_names if name in feeds}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The outputs of the last run of a session, and what ran."""

    outputs: Feeds
    ran: RanReport


def sizes_of(model: OnnxModel, feeds: Mapping[str, NDArray[np.generic]]) -> dict[str, int]:
    """The size of every axis that an input names directly; empty if the axes cannot be read."""
    try:
        names = model.facts.axes
    except ModelError:
        return {}
    sizes: dict[str, int] = {}
    for value in model.ir.graph.inputs:
        array = feeds.get(value.name or "")
        if array is None or value.shape is None or len(value.shape) != array.ndim:
            continue
        for size, actual in zip(value.shape, array.shape, strict=True):
            if isinstance(size, ir.SymbolicDim) and str(size.value) in names:
                sizes.setdefault(str(size.value), actual)
    return sizes


def planned_sizes(
    facts: ModelFacts, sizes: Mapping[str, int], *, fixed: Collection[str] = (), with_empty: bool = False
) -> list[dict[str, int]]:
    """Sizes for the runs of one session: one key, small, large, small, one, empty, small, large.

    Axes of equal size stay equally long, because they may belong together.

    Args:
        facts: Of the model.
        sizes: Sizes at which it is known to run; lengths are cut to a second tile.
        fixed: Axes that keep their size, and with them all axes of that size.
        with_empty: Whether lengths of 0 are among them.

    Example:
        >>> from types import SimpleNamespace
        >>> facts = SimpleNamespace(batch_axes=())
        >>> planned_sizes(facts, {"batch_size": 2, "q_seq_len": 13, "kv_seq_len": 97})[
        ...     :3
        ... ]  # doctest: +NORMALIZE_WHITESPACE
        [{'batch_size': 1, 'q_seq_len': 1, 'kv_seq_len': 1}, {'batch_size': 2, 'q_seq_len': 7, 'kv_seq_len': 34},
         {'batch_size': 3, 'q_seq_len': 13, 'kv_seq_len': 67}]
    """
    plan = [scale for scale in _PLAN if with_empty or scale is not _Scale.EMPTY]
    stay = {sizes[axis] for axis in fixed if axis in sizes}

    def size(axis: str, scale: _Scale) -> int:
        if sizes[axis] in stay:
            return sizes[axis]
        if axis.startswith("batch") or axis in facts.batch_axes:
            return {_Scale.ONE: 1, _Scale.LARGE: _BATCH + 1}.get(scale, _BATCH)
        large = min(sizes[axis], _LONGEST)
        small = large - large // 2
        return {_Scale.ONE: min(1, large), _Scale.SMALL: small, _Scale.LARGE: large, _Scale.EMPTY: 0}[scale]

    return [{axis: size(axis, scale) for axis in sizes} for scale in plan]


def run_after(
    model: OnnxModel, runtime: Runtime, earlier: Sequence[Feeds], feeds: Feeds, *, threads: int = 1
) -> LastRun:
    """Run a model in a fresh session, after other runs; a refused earlier run stays part of the sequence.

    Args:
        model: The model.
        runtime: Where to run it.
        earlier: Inputs of the runs before, in their order; () = the run is the first of its session.
        feeds: Inputs of the last run.
        threads: Threads inside one operator.

    Raises:
        SessionError: If the model does not load, or the last run fails, or the process of the runtime ends.
    """
    with runtime.load(model, LoadOptions(threads=threads)) as session:
        for before in earlier:
            try:
                session.run(before)
            except ProcessDiedError:
                raise
            except SessionError:
                continue
        outputs = session.run(feeds)
        return LastRun(outputs=outputs, ran=session.ran())


def smallest_sequence(earlier: Sequence[_Run], fails: Callable[[Sequence[_Run]], bool]) -> tuple[_Run, ...] | None:
    """The fewest of the earlier runs after which the last one still fails; None if it does not fail after all of them.

    One run is tried first, from the latest to the first; then runs are left out, half of them at a time and then fewer,
    until every run is needed.

    Args:
        earlier: The runs before the one that fails.
        fails: Whether the last run fails after these.

    Source: A. Zeller and R. Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002 (ddmin).

    Example:
        >>> smallest_sequence([4, 1, 7, 1, 3], lambda runs: 7 in runs and 3 in runs)
        (7, 3)
    """
    if not fails(earlier):
        return None
    for run in reversed(earlier):
        if fails([run]):
            return (run,)
    kept = list(earlier)
    size = max(1, len(kept) // 2)
    while True:
        for start in range(0, len(kept), size):
            left = kept[:start] + kept[start + size :]
            if left and fails(left):
                kept = left
                break
        else:
            if size == 1:
                return tuple(kept)
            size = max(1, size // 2)


def after_words(sizes: Sequence[Mapping[str, int]]) -> str:
    """Name the runs of a session before the one that is wrong.

    Example:
        >>> after_words([{"q_seq_len": 1, "kv_seq_len": 1}])
        'after a run at q_seq_len 1, kv_seq_len 1'
        >>> after_words([{"n": 1}, {"n": 3}])
        'after 2 runs (at n 1; at n 3)'
        >>> after_words([{}])
        'after a run on other inputs'
    """
    listed = ["at " + ", ".join(f"{axis} {size}" for axis, size in one.items()) if one else "" for one in sizes]
    if len(listed) == 1:
        return f"after a run {listed[0] or 'on other inputs'}"
    named = "; ".join(listed) if all(listed) else "on other inputs"
    return f"after {len(listed)} runs ({named})"
