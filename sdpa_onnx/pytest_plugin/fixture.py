"""The fixture `sdpa`: assert that a model agrees, compare callables, compare models."""

import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sdpa_onnx.api import ModelSource
    from sdpa_onnx.pytest_plugin.result import PairedResult

__all__ = ["Sdpa"]

_MARGIN = 0.05
# For two callables: about 100 blocks of three visits of 10 ms.
_CALLABLES_SECONDS = 3.0
# For two models in worker processes. Source: the budget of a comparison in `TimingPlan`.
_MODELS_SECONDS = 30.0


class Sdpa:
    """The fixture `sdpa` of one test.

    Args:
        item: The test.

    Example:
        >>> def test_new_is_as_fast(sdpa):
        ...     sdpa.compare(old, new).assert_not_slower()
    """

    __slots__ = ("_item",)

    def __init__(self, *, item: pytest.Item) -> None:
        self._item = item

    def assert_agrees(
        self,
        model: "ModelSource",
        runtime: str = "ort-cpu",
        *,
        sizes: Mapping[str, int] | None = None,
        inputs: "Mapping[str, NDArray[Any]] | str | os.PathLike[str] | None" = None,
        seed: int = 0,
    ) -> None:
        """Fail unless every attention of a model is right on a runtime and its named axes are dynamic.

        This is the check of `sdpa-onnx verify`: the float64 oracle judges several logit spreads and structural probes.
        If the runtime is not installed, the test is skipped.

        Args:
            model: A file, `ModelProto`, `onnx_ir.Model` or `OnnxModel`.
            runtime: Its name, see `sdpa-onnx runtimes`.
            sizes: Sizes of named axes; the others are chosen.
            inputs: Arrays by input name, or an .npz file, instead of random inputs; then the axes are not tested.
            seed: Seed of random inputs.

        Raises:
            AssertionError: With the evidence; also if nothing could be judged.
            RuntimeNotFoundError: If no runtime has this name.
            PlanError, ModelError, SessionError: If the model, a size or an input is wrong.
        """
        __tracebackhide__ = True
        from sdpa_onnx.errors import RuntimeUnavailableError
        from sdpa_onnx.pytest_plugin.agreement import find_disagreement

        try:
            found = find_disagreement(model, runtime, sizes=sizes or {}, inputs=inputs, seed=seed)
        except RuntimeUnavailableError as error:
            pytest.skip(str(error))
        if found is not None:
            raise AssertionError(found)

    def compare(
        self,
        baseline: Callable[[], object],
        candidate: Callable[[], object],
        *,
        name: str | None = None,
        seconds: float = _CALLABLES_SECONDS,
        margin: float = _MARGIN,
        seed: int = 0,
    ) -> "PairedResult":
        """Time two callables interleaved in this process.

        Every block has visits of both callables and of a clone of the baseline in random order, so that disturbances of
        the machine affect all alike. Two processes of one program differ by some tenths of a percent for their whole
        life, and this is one process. The interval includes that difference, so that a difference below 2 to 3 % is
        never claimed, however long the measurement. For smaller ones use `compare_models` or `sdpa-onnx compare`.

        Args:
            baseline, candidate: Called without arguments, many times; their results are discarded.
            name: Name of the comparison, if a test makes several.
            seconds: Time for the measurement; at least 20 blocks are measured. Warm-up is added: in all up to twice as
                long, but never less than about 90 calls take.
            margin: Slowdown that `assert_not_slower` allows, as a share.
            seed: Seed of the order of visits.

        Returns:
            Ratio, interval and verdict; nothing is asserted yet. The summary at the end of the session lists it.

        Raises:
            PlanError: If an argument is wrong.
            Exception: Whatever a callable raises.
        """
        __tracebackhide__ = True
        _check_callable("baseline", baseline)
        _check_callable("candidate", candidate)
        _check_numbers(seconds, margin)
        self._refuse_timing(baseline, candidate)
        from sdpa_onnx.pytest_plugin.callables import time_callables
        from sdpa_onnx.pytest_plugin.collected import keep

        pair = time_callables(baseline, candidate, seconds=seconds, seed=seed)
        return keep(self._item, pair, name=name, margin=margin)

    def compare_models(
        self,
        base: "ModelSource",
        head: "ModelSource",
        *,
        runtime: str = "ort-cpu",
        sizes: Mapping[str, int] | None = None,
        threads: int = 1,
        name: str | None = None,
        seconds: float = _MODELS_SECONDS,
        margin: float = _MARGIN,
    ) -> "PairedResult":
        """Time two models interleaved, each in its own processes with several launches, as `sdpa-onnx bench` does.

        Args:
            base, head: Models with the same inputs.
            runtime: The runtime that runs both.
            sizes: Sizes of named axes; batch 1 and length 512 by default.
            threads: Threads inside one operator.
            name: Name of the comparison, if a test makes several.
            seconds: Time for the whole comparison.
            margin: Slowdown that `assert_not_slower` allows, as a share.

        Returns:
            As `compare`. The test is skipped if the runtime is not installed or fewer cores than threads are idle.

        Raises:
            PlanError: If the models cannot be compared, or an argument is wrong.
            SessionError: If one of them does not run.
        """
        __tracebackhide__ = True
        _check_numbers(seconds, margin)
        self._refuse_timing()
        from sdpa_onnx.errors import RuntimeUnavailableError
        from sdpa_onnx.pytest_plugin.collected import keep
        from sdpa_onnx.pytest_plugin.models import time_models

        options = {"sizes": sizes or {}, "threads": threads, "seconds": seconds, "margin": margin}
        try:
            pair = time_models(base, head, runtime=runtime, **options)  # type: ignore[arg-type]  # typed by time_models
        except RuntimeUnavailableError as error:
            pytest.skip(str(error))
        if isinstance(pair, str):
            pytest.skip(pair)
        return keep(self._item, pair, name=name, margin=margin)

    def _refuse_timing(self, *calls: Callable[[], object]) -> None:
        """Skip if timing is off or would measure other tests too; the callables still run once."""
        from sdpa_onnx.pytest_plugin.join_benchmark import why_not_timed

        reason = why_not_timed(self._item.config)
        if os.environ.get("PYTEST_XDIST_WORKER"):
            reason = "pytest-xdist runs several tests at once, and they would disturb each other"
        if reason is None:
            return
        for call in calls:
            call()
        pytest.skip(f"Nothing is timed: {reason}.")


def _check_callable(name: str, given: object) -> None:
    if not callable(given):
        raise PlanError(
            f"The {name} is a {type(given).__name__}, not a callable.", hint="Pass a function without arguments."
        )
    if inspect.iscoroutinefunction(given) or inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise PlanError(
            f"The {name} is a coroutine or generator function: calling it runs nothing.",
            hint="Pass a function that runs it to its end.",
        )


def _check_numbers(seconds: float, margin: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0.0):
        raise PlanError(f"seconds is {seconds}, but must be above 0.")
    if not (math.isfinite(margin) and margin >= 0.0):
        raise PlanError(f"margin is {margin}, but must be a share of at least 0.", hint="0.05 allows 5 %.")
