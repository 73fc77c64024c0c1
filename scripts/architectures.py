"""Export six transformers architectures with each exporter, convert them to every form, verify them on onnxruntime.

    python -m scripts.architectures [--only NAME ...]

Prints a table. Exports random weights into a temporary folder (about 3 GB in all, one file at a time); downloads
nothing. "error / bound" is the largest error of the model outputs at each set of sizes, divided by its bound. The last
lines list the models that an exporter cannot export, with the reason.
"""

import argparse
import tempfile
from pathlib import Path

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.choose_form.workarounds import PATIENCE_SECONDS
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process
from tests.transformers.architectures import ARCHITECTURES, EXPORT_FAILS, PAIRS, export
from tests.transformers.conversion import RUNTIME, Row, Source, sizes_for

_COLUMNS = ("model (sizes of)", "exporter", "found", "form", "opset", "written", "right", "error / bound", "refused")


def main() -> None:
    """Print the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], choices=sorted(ARCHITECTURES), help="only these architectures")
    only = parser.parse_args().only or list(ARCHITECTURES)
    print(f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|")
    with own_process(get_runtime(RUNTIME), PATIENCE_SECONDS) as runtime:
        for name, exporter in PAIRS:
            if name in only:
                _show(name, exporter, runtime)
    for (name, exporter, attention), reason in EXPORT_FAILS.items():
        print(f"{name}, {exporter}, attention computed as {attention}: not exported: {reason}")


def _show(name: str, exporter: str, runtime: Runtime) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Source(export(name, exporter, Path(folder)), sizes_for(name, exporter))
        found = f"{len(source.lifted.read)} of {ARCHITECTURES[name].expected}"
        for form in Form:
            row = source.row(form, runtime)
            first = (f"{name} ({ARCHITECTURES[name].sizes})", exporter, found, form.value)
            print(f"| {' | '.join((*first, *_cells(row)))} |", flush=True)


def _cells(row: Row) -> tuple[str, ...]:
    if row.failure:
        return "-", "0", "-", "-", row.failure
    checked = sum(row.verdicts.values())
    right = f"{checked - len(row.wrong_attentions)} of {checked}" if checked else "-"
    ends = ", ".join(f"{end.max_bound_ratio:.2f}" for end in row.ends) or "-"
    refused = "; ".join(f"{count} x {reason}" for reason, count in row.reasons.items())
    return str(row.opset), str(row.converted), right, ends, refused


if __name__ == "__main__":
    main()
