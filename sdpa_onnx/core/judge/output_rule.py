"""Judge an output of a module against a run of the module in float64, after a check of that run itself.

For outputs without a proven bound. Runs nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["OutputRuns", "OutputYardstick"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]
Flags = NDArray[np.bool_]

# The error of the exported graph may be this many times the error of PyTorch in the same type. A sum of n terms in
# one sequence has a rounding error of variance n^2/2, in p partial sums n^2/(2p): the ratio of the standard deviations
# is sqrt(p), and a kernel of 16 float32 lanes and 4 accumulators has p = 64. See docs/decisions/0001.
_ALLOWED_TIMES = 8.0
# The error of PyTorch in a row may be this many times the change that one rounding of the inputs and weights causes,
# and the median error of the rows: that times eight, because both are small samples.
_EXPLAINED_TIMES = _ALLOWED_TIMES**2


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRuns:
    """One output of a module at one set of inputs.

    Args:
        exact: In float64; None if the module has no such run.
        own: In the module's own type.
        nudged: The same for weights and inputs that were each moved by one rounding, several runs; called if needed.
        note: Why there is no float64 run, "" if there is one.
    """

    exact: Array | None
    own: Array
    nudged: Callable[[], Sequence[Array]]
    note: str = ""


@dataclass(slots=True, kw_only=True)
class OutputYardstick:
    """What is allowed, over all outputs of a module judged so far.

    Args:
        unit_roundoff: Of the module's type.
        relative: Largest PyTorch error over the output's largest magnitude, over all sizes seen so far.
    """

    unit_roundoff: float
    relative: float = 0.0

    def judge(self, runs: OutputRuns, actual: Array) -> Agreement:
        """Judge one output.

        It is wrong if its shape differs, if it is not finite where PyTorch's is (or the reverse), or if an integer
        differs that one rounding of inputs and weights does not change. Else the worst verdict is suspicious: the limit
        is no proof. Rows in which float64 is not finite, although PyTorch in the module's own type is, or is farther
        from it than rounding explains, are compared with PyTorch in the module's own type.

        Args:
            runs: What PyTorch returned.
            actual: The output of the exported graph.

        Source: docs/decisions/0001.
        """
        own = runs.own
        if actual.shape != own.shape:
            return Agreement(
                verdict=Verdict.WRONG,
                diagnosis=f"The output has shape {actual.shape}, PyTorch returns {own.shape}.",
            )
        if own.dtype.kind != "f" or not own.size:
            return _judge_exact(runs, actual)
        narrow, values = own.astype(np.float64), actual.astype(np.float64)
        exact = narrow if runs.exact is None else runs.exact.astype(np.float64)
        odd = _odd(exact, narrow, values)
        if odd:
            return Agreement(
                verdict=Verdict.WRONG,
                diagnosis=f"Places where only one of the output and PyTorch's is finite: {odd}.",
                not_finite=odd,
                total=own.size,
            )
        usable = np.isfinite(values) & (np.isfinite(exact) | np.isfinite(narrow))
        if not usable.any():
            return Agreement(verdict=Verdict.OK, diagnosis="No element is finite, as in PyTorch.", total=own.size)
        return self._compare(runs, exact, narrow, np.where(usable, values, 0.0), usable)

    def _compare(self, runs: OutputRuns, exact: Float64, narrow: Float64, values: Float64, usable: Flags) -> Agreement:
        lost = _rows(usable & ~np.isfinite(exact)) | (runs.exact is None)
        with np.errstate(invalid="ignore"):
            errors = np.where(usable & np.isfinite(exact) & np.isfinite(narrow), np.abs(narrow - exact), 0.0)
        own = errors.max(-1, keepdims=True) if errors.ndim else errors
        largest = float(np.abs(np.where(usable, np.where(np.isfinite(narrow), narrow, exact), 0.0)).max())
        spread = _Spread(runs)
        far = ~lost & (own > np.sqrt(self.unit_roundoff) * largest)
        if far.any():
            far &= own > _EXPLAINED_TIMES * spread.rows()
        by_own = lost | far
        own = np.where(by_own, 0.0, own)
        # A few rows may be ill-conditioned (all keys hidden by a finite number): they must not raise the others' limit.
        regular = own <= _EXPLAINED_TIMES * (float(np.median(own[~by_own])) if (~by_own).any() else 0.0)
        level = float(own[regular].max(initial=0.0))
        level = level or float(np.median(own))
        self.relative = max(self.relative, level / largest if largest else 0.0)
        base = np.maximum(own, max(level, self.relative * largest))
        if by_own.any():
            base = np.where(by_own, np.maximum(base, np.maximum(spread.rows(), self.unit_roundoff * largest)), base)
        allowed = _ALLOWED_TIMES * base + self.unit_roundoff * largest
        # Both have PyTorch's error there.
        allowed = np.where(by_own, allowed + base + self.unit_roundoff * largest, allowed)
        reference = np.where(by_own | ~np.isfinite(exact), narrow, exact)
        with np.errstate(invalid="ignore"):
            error = np.where(usable & np.isfinite(reference), np.abs(values - reference), 0.0)
        return self._agreement(runs, error, allowed, own, lost=lost, far=far, judged=int(usable.sum()))

    def _agreement(
        self, runs: OutputRuns, error: Float64, allowed: Float64, own: Float64, *, lost: Flags, far: Flags, judged: int
    ) -> Agreement:
        ratio = np.divide(error, allowed, out=np.zeros_like(error), where=allowed > 0.0)
        place = int(np.argmax(ratio))
        worst, limit = float(error.flat[place]), float(np.broadcast_to(allowed, error.shape).flat[place])
        compared = bool(np.broadcast_to(lost | far, error.shape).flat[place])
        what = "PyTorch's own in the same type is" if not compared else "it is compared with PyTorch in the same type;"
        shown = f"{what} {float(np.broadcast_to(own, error.shape).flat[place]):.3g}," if not compared else what
        warnings = [runs.note] if runs.note else []
        if not runs.note and lost.any():
            warnings.append(f"float64 of the module is not finite in {_count(lost)}, there compared with {_OWN}.")
        if far.any():
            warnings.append(
                f"float64 of the module differs in {_count(far)} by more than one rounding of inputs and weights "
                f"explains, there compared with {_OWN}."
            )
        return Agreement(
            verdict=Verdict.OK if worst <= limit else Verdict.SUSPICIOUS,
            diagnosis=f"The largest error is {worst:.3g}; {shown} allowed {limit:.3g}.",
            max_abs_error=float(error.max()),
            max_bound_ratio=worst / limit if limit else 0.0,
            total=error.size,
            judged=judged,
            warnings=tuple(warnings),
        )


_OWN = "PyTorch in the module's own type"


@dataclass(slots=True)
class _Spread:
    """The largest change of each row by one rounding of weights and inputs."""

    runs: OutputRuns
    found: Float64 | None = None

    def rows(self) -> Float64:
        if self.found is None:
            own = self.runs.own.astype(np.float64)
            change = np.zeros_like(own)
            for moved in self.runs.nudged():
                with np.errstate(invalid="ignore"):
                    step = np.abs(moved.astype(np.float64) - own) if moved.shape == own.shape else 0.0
                change = np.maximum(change, np.where(np.isfinite(step), step, 0.0))
            self.found = change.max(-1, keepdims=True) if change.ndim else change
        return self.found


def _odd(exact: Float64, narrow: Float64, values: Float64) -> int:
    """Count places that are a number in only one of PyTorch and the output, or another infinity.

    Where only float64 or only PyTorch in the own type is finite, the output may be either.
    """
    number = np.isfinite(narrow) & ~np.isfinite(values)
    neither = ~np.isfinite(narrow) & ~np.isfinite(exact)
    other = neither & (values != narrow) & ~(np.isnan(values) & np.isnan(narrow))
    return int(np.count_nonzero(number | other))


def _rows(flags: Flags) -> Flags:
    return np.asarray(flags.any(-1, keepdims=True)) if flags.ndim else flags


def _count(rows: Flags) -> str:
    number = int(np.count_nonzero(rows))
    return f"{number} row" if number == 1 else f"{number} rows"


def _judge_exact(runs: OutputRuns, actual: Array) -> Agreement:
    """Integers and booleans: equal, except where one rounding before them changes them."""
    own = runs.own
    different = actual != own
    if not different.any():
        return Agreement(verdict=Verdict.OK, diagnosis="The outputs are equal.", total=own.size)
    firm: Flags = np.ones(own.shape, dtype=bool)
    for other in (*(() if runs.exact is None else (runs.exact,)), *runs.nudged()):
        firm &= np.asarray(other == own)
    count = int(np.count_nonzero(different & firm))
    if count:
        return Agreement(verdict=Verdict.WRONG, diagnosis="The outputs differ.", mismatched=count, total=own.size)
    count = int(np.count_nonzero(different))
    return Agreement(
        verdict=Verdict.SUSPICIOUS,
        diagnosis=f"{count} of {own.size} elements differ, all of them where one rounding of the inputs or weights "
        "changes PyTorch's too.",
        mismatched=count,
        total=own.size,
    )
