"""What the fixture `sdpa` can do: assert that a model agrees, compare callables, compare models."""

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
# For two models in processes of their own. Source: the budget of a comparison in `TimingPlan`.
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
        """Fail unless every attention of a model is right on a runtime, and its named axes may change.

        What `sdpa-onnx verify` does: the float64 oracle judges a ladder of logit spreads and structural probes. A
        runtime that is not installed skips the test.

        Args:
            model: A file, `ModelProto`, `onnx_ir.Model` or `OnnxModel`.
            runtime: Its name, see `sdpa-onnx runtimes`.
            sizes: Sizes of named axes; the others are chosen.
            inputs: Arrays by input name, or an .npz file, in place of drawn ones; the axes are not tried then.
            seed: Of drawn inputs.

        Raises:
            AssertionError: With the evidence; also where nothing could be judged.
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

        Visits of both and of the baseline once more stand in random order in every block, so that what disturbs the
        machine disturbs all alike. Two processes of one program differ by some tenths of a percent as long as they
        live, and this is one process: that goes into the interval, so that a difference below 2 to 3 % is never
        claimed, however long it is measured. For less use `compare_models` or `sdpa-onnx compare`.

        Args:
            baseline, candidate: Called without arguments, many times; what they return is dropped.
            name: Of the comparison, where a test makes several.
            seconds: For the measurement; 20 blocks are measured in any case, and warm-up comes on top: twice as long in
                all, but never less than about 90 calls take.
            margin: Slow-down that `assert_not_slower` allows, as a share.
            seed: Of the order of visits.

        Returns:
            Ratio, interval and word; nothing is asserted yet. It is told in the summary at the end.

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
        """Time two models interleaved, each in processes of its own: several launches, as `sdpa-onnx bench` does.

        Args:
            base, head: Models that take the same inputs.
            runtime: Where both run.
            sizes: Sizes of named axes; batch 1 and length 512 where not given.
            threads: Threads inside one operator.
            name: Of the comparison, where a test makes several.
            seconds: For the whole comparison.
            margin: Slow-down that `assert_not_slower` allows, as a share.

        Returns:
            As `compare`. A runtime that is not installed, or a machine with fewer idle cores than threads, skips.

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

        asked = {"sizes": sizes or {}, "threads": threads, "seconds": seconds, "margin": margin}
        try:
            pair = time_models(base, head, runtime=runtime, **asked)  # type: ignore[arg-type]  # typed by time_models
        except RuntimeUnavailableError as error:
            pytest.skip(str(error))
        if isinstance(pair, str):
            pytest.skip(pair)
        return keep(self._item, pair, name=name, margin=margin)

    def _refuse_timing(self, *calls: Callable[[], object]) -> None:
        """Skip where timing is off, or would measure other tests; what was given still runs once."""
        from sdpa_onnx.pytest_plugin.join_benchmark import why_not_timed

        reason = why_not_timed(self._item.config)
        if os.environ.get("PYTEST_XDIST_WORKER"):
            reason = "pytest-xdist runs several tests at once, which would disturb each other"
        if reason is None:
            return
        for call in calls:
            call()
        pytest.skip(f"Nothing is timed: {reason}.")


def _check_callable(name: str, given: object) -> None:
    if not callable(given):
        raise PlanError(
            f"The {name} is a {type(given).__name__}, not a callable.", hint="Give a function without arguments."
        )
    if inspect.iscoroutinefunction(given) or inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise PlanError(
            f"The {name} is a coroutine or generator function: a call of it runs nothing.",
            hint="Give a function that runs it to its end.",
        )


def _check_numbers(seconds: float, margin: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0.0):
        raise PlanError(f"seconds is {seconds}, and must be above 0.")
    if not (math.isfinite(margin) and margin >= 0.0):
        raise PlanError(f"margin is {margin}, and must be a share of at least 0.", hint="0.05 allows 5 %.")
