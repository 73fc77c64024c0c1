"""Tables of the costs of a call besides its steady time, of its rates, and of differences between the arms.

For comparisons in worker processes; an arm without a measurement has no row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.report.text.labels import CommonFactors, series_name
from sdpa_onnx.report.text.number_text import NOT_KNOWN, bytes_text, duration, figure, share
from sdpa_onnx.report.text.table import Column, Section, Table
from sdpa_onnx.report.timing.comparisons import RecordedComparison
from sdpa_onnx.report.timing.tables import has_launches, section_of_case

__all__ = ["CIRCUMSTANCES_TITLE", "COST_TITLE", "WORK_TITLE", "circumstances_table", "cost_table", "work_table"]

COST_TITLE = "What a call costs"
WORK_TITLE = "Work of a call"
CIRCUMSTANCES_TITLE = "What the arms ran on"


def cost_table(found: Sequence[RecordedComparison], usual: CommonFactors) -> Table:
    """Session creation, first runs, idling, time inside kernels, memory."""
    heads = ("create", "first run", "new length", "after idling", "kernels", "host", "memory")
    return Table(
        title=COST_TITLE,
        heading="case",
        columns=(Column(head="arm"), *(Column(head=head, is_number=True) for head in heads)),
        sections=_sections(found, usual, _cost_cells),
        note="Wall time, median over launches. Create: creation of the session. New length: the first run at "
        "other sizes in a warm process. After idling: the first run after a pause. Kernels, host: time of a "
        "profiled call inside and outside operators; profiling adds time. Memory: the peak of the first runs above the "
        f"loaded state. {NOT_KNOWN}: not measured, or smaller than its error.",
    )


def work_table(found: Sequence[RecordedComparison], usual: CommonFactors, ceilings: Mapping[str, float]) -> Table:
    """Rates of a call compared with the ceilings of the machine, what bounds it, and how many nodes ran."""
    heads = ("useful GFLOP/s", "executed GFLOP/s", "Gexp/s", "GB/s")
    shares = " In parentheses: share of the ceiling measured in the same run." if ceilings else ""
    return Table(
        title=WORK_TITLE,
        heading="case",
        columns=(
            Column(head="arm"),
            *(Column(head=head, is_number=True) for head in heads),
            Column(head="bound by"),
            Column(head="nodes run", is_number=True),
        ),
        sections=_sections(found, usual, lambda arm: _work_cells(arm, ceilings)),
        note="By the median time. Useful: pairs that may attend; executed: pairs that a kernel computes which skips "
        "nothing. GB/s: inputs read once and outputs written once, the least that a fused kernel moves. Bound by: "
        "what takes longest: products, exponentials, memory, or the host (time outside operators). "
        f"Nodes run: after the optimisation of the runtime.{shares}",
    )


def circumstances_table(found: Sequence[RecordedComparison]) -> Table:
    """Version, environment, options and threads of each arm, if arms of one comparison differ in them."""
    differing = [one for one in found if _differs(one)]
    rows = dict.fromkeys(
        (
            series_name(arm),
            arm.runtime_version or NOT_KNOWN,
            arm.python or "this environment",
            ", ".join(f"{name}={value}" for name, value in sorted(arm.options.items())) or NOT_KNOWN,
            str(arm.threads),
        )
        for one in differing
        for arm in one.arms
    )
    heads = ("version", "environment", "options")
    return Table(
        title=CIRCUMSTANCES_TITLE,
        heading="",
        columns=(
            Column(head="arm"),
            *(Column(head=head) for head in heads),
            Column(head="threads", is_number=True),
        ),
        sections=(Section(heading="", rows=tuple(rows)),) if rows else (),
        note="Options: only those that differ from the default.",
    )


def _sections(
    found: Sequence[RecordedComparison], usual: CommonFactors, cells: Callable[[TimingRecord], tuple[str, ...]]
) -> tuple[Section, ...]:
    sections = []
    for one in found:
        if has_launches(one.arms):
            rows = [(series_name(arm), *row) for arm in one.arms if _has_figures(row := cells(arm))]
            sections.append(section_of_case(one, usual, rows))
    return tuple(section for section in sections if section.rows)


def _has_figures(cells: Iterable[str]) -> bool:
    return any(cell != NOT_KNOWN for cell in cells)


def _cost_cells(arm: TimingRecord) -> tuple[str, ...]:
    seconds = (
        arm.create_seconds,
        arm.first_seconds,
        arm.new_length_seconds,
        arm.idle_seconds,
        arm.kernel_seconds,
        arm.host_seconds,  # 0 if the profile has more time than a call without profiling
    )
    return (*(duration(one or None) for one in seconds), bytes_text(arm.peak_memory_bytes))


def _work_cells(arm: TimingRecord, ceilings: Mapping[str, float]) -> tuple[str, ...]:
    products = ceilings.get("gemm_flops_per_second", 0.0)
    return (
        _rate(arm.useful_flops, arm.median_seconds, products),
        _rate(arm.executed_flops, arm.median_seconds, products),
        _rate(arm.exps, arm.median_seconds, ceilings.get("exps_per_second", 0.0)),
        _rate(arm.bytes_moved, arm.median_seconds, ceilings.get("bytes_per_second", 0.0)),
        arm.bound_by or NOT_KNOWN,
        str(sum(arm.ran.values())) if arm.ran else NOT_KNOWN,
    )


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
