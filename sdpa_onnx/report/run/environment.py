"""The environment of a run as rows of text, for terminal and Markdown; it comes from the header alone."""

from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.text.number_text import figure, figures_per_second, percent

__all__ = ["environment_rows"]

# Ceilings by name: printed name and unit.
_CEILINGS = {
    "gemm_flops_per_second": ("ceiling, matrix products", "FLOP/s"),
    "exps_per_second": ("ceiling, exponentials", "exp/s"),
    "bytes_per_second": ("ceiling, memory", "B/s"),
}


def environment_rows(header: RunHeader) -> list[tuple[str, str]]:
    """Name and value of everything that the header records."""
    return [
        ("suite", header.suite),
        ("started", header.started),
        ("finished", header.finished or "no"),
        ("cells", f"{header.done_cells} of {header.planned_cells}"),
        *_seconds(header),
        *([("left out", ", ".join(header.skipped_kinds))] if header.skipped_kinds else []),
        *sorted(header.environment.items()),
        ("threads", str(header.threads)),
        ("versions", ", ".join(f"{name} {version}" for name, version in sorted(header.versions.items())) or "unknown"),
        *(_ceiling(name, value) for name, value in sorted(header.ceilings.items()) if value > 0),
        *_calibration(header),
    ]


def _seconds(header: RunHeader) -> list[tuple[str, str]]:
    """The time that each kind of job took; no row in runs of earlier versions."""
    if header.elapsed_seconds is None or not header.kind_seconds:
        return []
    parts = ", ".join(f"{kind} {spent:.0f}" for kind, spent in header.kind_seconds.items())
    beside = f"; {header.workers} side by side, but each timing alone" if header.workers > 1 else ""
    return [("seconds by kind of job", f"{parts}; {header.elapsed_seconds:.0f} in all{beside}")]


def _calibration(header: RunHeader) -> list[tuple[str, str]]:
    """The assumed difference between two processes of one model; no row in runs of earlier versions."""
    spread = header.calibration.get("between_sd", 0.0)
    return [("assumed difference between two processes of one model", percent(spread))] if spread > 0 else []


def _ceiling(name: str, value: float) -> tuple[str, str]:
    if name not in _CEILINGS:
        return f"ceiling, {name}", figure(value)
    words, unit = _CEILINGS[name]
    return words, figures_per_second(value, unit)
