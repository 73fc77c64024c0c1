"""Tables of the costs of a call besides its steady time, of its rates, and of differences between the arms.

For comparisons in worker processes; an arm without a measurement has no row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.report.text.labels import series_name
from sdpa_onnx.report.text.number_text import NOT_KNOWN, bytes_text, duration, figure, share
from sdpa_onnx.report.text.table import Table, text_table
from sdpa_onnx.report.timing.case_names import CaseNames
from sdpa_onnx.report.timing.comparisons import RecordedComparison
from sdpa_onnx.report.timing.tables import case_heading, has_launches

__all__ = ["CIRCUMSTANCES_TITLE", "COST_TITLE", "WORK_TITLE", "circumstances_table", "cost_table", "work_table"]

COST_TITLE = "What a call costs"
WORK_TITLE = "Work of a call"
CIRCUMSTANCES_TITLE = "What the arms ran on"


def cost_table(found: Sequence[RecordedComparison], names: CaseNames) -> Table:
    """Session creation, first runs, idling, time inside kernels, memory."""
    return text_table(
        COST_TITLE,
        _rows(found, names, _cost_cells),
        heading="case",
        numbers=("create", "first run", "new length", "after idling", "kernels", "host", "memory"),
        note=f"Unless stated: {names.usual}. "
        "Wall time, median over launches. Create: creation of the session. New length: the first run at "
        "other sizes in a warm process. After idling: the first run after a pause. Kernels, host: time of a "
        "profiled call inside and outside operators; profiling adds time. Memory: the peak of the first runs above the "
        f"loaded state. {NOT_KNOWN}: not measured, or smaller than its error.",
    )


def _cost_cells(arm: TimingRecord) -> dict[str, str]:
    return {
        "create": duration(arm.create_seconds or None),
        "first run": duration(arm.first_seconds or None),
        "new length": duration(arm.new_length_seconds or None),
        "after idling": duration(arm.idle_seconds or None),
        "kernels": duration(arm.kernel_seconds or None),
        "host": duration(arm.host_seconds or None),  # 0 if the profile has more time than a call without profiling
        "memory": bytes_text(arm.peak_memory_bytes),
    }


def work_table(found: Sequence[RecordedComparison], names: CaseNames, ceilings: Mapping[str, float]) -> Table:
    """Rates of a call compared with the ceilings of the machine, what bounds it, and how many nodes ran."""
    shares = " In parentheses: share of the ceiling measured in the same run." if ceilings else ""
    return text_table(
        WORK_TITLE,
        _rows(found, names, lambda arm: _work_cells(arm, ceilings)),
        heading="case",
        numbers=("useful GFLOP/s", "executed GFLOP/s", "Gexp/s", "GB/s", "nodes run"),
        note=f"Unless stated: {names.usual}. "
        "By the median time. Useful: pairs that may attend; executed: pairs that a kernel computes which skips "
        "nothing. GB/s: inputs read once and outputs written once, the least that a fused kernel moves. Bound by: "
        "what takes longest: products, exponentials, memory, or the host (time outside operators). "
        f"Nodes run: after the optimisation of the runtime.{shares}",
    )


def _work_cells(arm: TimingRecord, ceilings: Mapping[str, float]) -> dict[str, str]:
    products = ceilings.get("gemm_flops_per_second", 0.0)
    return {
        "useful GFLOP/s": _rate(arm.useful_flops, arm.median_seconds, products),
        "executed GFLOP/s": _rate(arm.executed_flops, arm.median_seconds, products),
        "Gexp/s": _rate(arm.exps, arm.median_seconds, ceilings.get("exps_per_second", 0.0)),
        "GB/s": _rate(arm.bytes_moved, arm.median_seconds, ceilings.get("bytes_per_second", 0.0)),
        "bound by": arm.bound_by or NOT_KNOWN,
        "nodes run": str(sum(arm.ran.values())) if arm.ran else NOT_KNOWN,
    }


def circumstances_table(found: Sequence[RecordedComparison]) -> Table:
    """Version, environment, options and threads of each arm, if arms of one comparison differ in them."""
    rows = [
        {
            "arm": series_name(arm),
            "version": arm.runtime_version or NOT_KNOWN,
            "environment": arm.python or "this environment",
            "options": ", ".join(f"{name}={value}" for name, value in sorted(arm.options.items())) or NOT_KNOWN,
            "threads": str(arm.threads),
        }
        for one in found
        if _differs(one)
        for arm in one.arms
    ]
    once = {tuple(row.values()): row for row in rows}
    note = "Options: only those that differ from the default."
    return text_table(CIRCUMSTANCES_TITLE, once.values(), numbers=("threads",), note=note)


def _rows(
    found: Sequence[RecordedComparison], names: CaseNames, cells: Callable[[TimingRecord], dict[str, str]]
) -> Iterator[dict[str, str]]:
    """A row for every arm that has a figure."""
    for one in found:
        for arm in one.arms if has_launches(one.arms) else ():
            row = cells(arm)
            if {*row.values()} != {NOT_KNOWN}:
                yield {"case": case_heading(one, names), "arm": series_name(arm), **row}


def _rate(amount: int | None, seconds: float | None, ceiling: float) -> str:
    """A rate in 10^9 per second, with its share of the ceiling if known."""
    if not amount or not seconds:
        return NOT_KNOWN
    rate = amount / seconds
    return figure(rate / 1e9) + (f" ({share(rate / ceiling)})" if ceiling > 0 else "")


def _differs(one: RecordedComparison) -> bool:
    """Whether arms differ in environment, options or threads, or in the version of one runtime."""
    versions: dict[str, set[str]] = {}
    for arm in one.arms:
        versions.setdefault(arm.runtime, set()).add(arm.runtime_version)
    others = {(arm.python, tuple(sorted(arm.options.items())), arm.threads) for arm in one.arms}
    return len(others) > 1 or any(len(known) > 1 for known in versions.values())
