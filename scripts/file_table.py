"""Table of files and architectures: attentions by hand, found, read, judged, converted to each form, seconds.

    python -m scripts.file_table ROWS.jsonl [--only TEXT ...] [--files FOLDER] [--seconds 600]
    python -m scripts.file_table ROWS.jsonl --show

Exports small architectures of transformers with random weights (`small_architectures`), makes files of other kinds
from them (`file_kinds`), and takes the real files of `REAL_FILES` from FOLDER. Each row runs in a process of its own,
and is added to ROWS.jsonl when it is finished; rows that are there are not run again. `--show` prints the table.

The comparison of outputs is its own: onnxruntime runs the file and each conversion at three sets of sizes that were
not traced, and the table shows the largest difference divided by the largest output. The library's judge is not used.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.file_kinds import row_names, write_file
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.records import AgreementRecord
from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.runtimes.worker.onnxruntime_import import import_onnxruntime

Arrays = Mapping[str, NDArray[np.generic]]

# Sets of sizes: an axis with a name takes its size, any other name that of "length". None of them was traced.
_SIZES = (
    {"batch": 2, "length": 67, "target": 33},
    {"batch": 1, "length": 8, "target": 1},
    {"batch": 3, "length": 21, "target": 4},
)
# Ids below it are in every vocabulary here.
_IDS = 50
_COLUMNS = ("file", "opset", "nodes", "attentions", "found", "read", "checks that agree")


def main() -> int:
    """Add the rows that are missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="one JSON object a line")
    parser.add_argument("--only", nargs="*", default=[], help="only rows whose names contain one of these")
    parser.add_argument("--files", type=Path, help="the folder of the real files")
    parser.add_argument("--seconds", type=float, default=600.0, help="of one row")
    parser.add_argument("--show", action="store_true", help="print the table of the rows so far")
    parser.add_argument("--row", help="run this row here and print it")
    chosen = parser.parse_args()
    if chosen.row:
        print(json.dumps(_row(chosen.row, chosen.files)))
        return 0
    done = _read(chosen.rows)
    if chosen.show:
        print("\n".join(_table(done)))
        return 0
    for name in row_names(chosen.files):
        if name not in done and (not chosen.only or any(text in name for text in chosen.only)):
            row = _apart(name, chosen.files, chosen.seconds)
            with chosen.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row["name"], (row.get("failure") or "finished").splitlines()[0], flush=True)
    return 0


def _read(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def _apart(name: str, files: Path | None, seconds: float) -> dict[str, Any]:
    """One row in a process of its own, so that a crash or a hang is a row too."""
    command = [sys.executable, "-m", "scripts.file_table", "-", "--row", name]
    if files is not None:
        command += ["--files", str(files)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"name": name, "failure": f"not finished after {seconds:g} s"}
    if done.returncode:
        return {"name": name, "failure": f"exit code {done.returncode}: {done.stderr[-600:]}"}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _row(name: str, files: Path | None) -> dict[str, Any]:
    """Write the file of a row, and take every step of it."""
    with tempfile.TemporaryDirectory() as folder:
        row: dict[str, Any] = {"name": name, "steps": {}}
        try:
            source = write_file(name, Path(folder), files)
        except Exception as error:  # noqa: BLE001  # exporters and quantisers raise anything
            return row | {"failure": f"not written: {_in_short(error)}"}
        row |= {"attentions": source.attentions, "kind": source.kind, "bytes": source.path.stat().st_size}
        row |= _read_and_judged(source.path, row["steps"])
        try:
            row["forms"] = _converted(source.path, Path(folder), source.sizes or _SIZES, row["steps"])
        except Exception as error:  # noqa: BLE001  # onnxruntime refuses the file itself
            row["failure"] = f"not run: {_in_short(error)}"
    return row


def _in_short(error: Exception) -> str:
    """The kind of an error and its first two lines."""
    return " ".join([f"{type(error).__name__}:", *str(error).strip().splitlines()[:2]])[:400]


def _read_and_judged(path: Path, steps: dict[str, float]) -> dict[str, Any]:
    import sdpa_onnx

    model = sdpa_onnx.load(path)
    row: dict[str, Any] = {"opset": model.opset, "nodes": len(list(model.ir.graph.all_nodes()))}
    try:
        records = _timed(steps, "inspect", lambda: sdpa_onnx.inspect(path))
    except SdpaOnnxError as error:
        return row | {"found": 0, "read": 0, "reasons": [str(error).replace(str(path), path.name)]}
    unread = [record for record in records if record.spec is None]
    row |= {"found": len(records), "read": len(records) - len(unread), "reasons": [one.reason for one in unread]}
    row["masks"] = sorted({_mask(record) for record in records if record.spec is not None})
    try:
        checks = _timed(steps, "verify", lambda: sdpa_onnx.verify(path))
    except SdpaOnnxError as error:
        return row | {"checks": 0, "agree": 0, "judged": 0, "not_ok": [str(error).replace(str(path), path.name)]}
    judged = [one for one in checks if isinstance(one, AgreementRecord)]
    return row | {
        "checks": len(judged),
        "agree": sum(one.outcome.value == "ok" for one in judged),
        "judged": len({one.site for one in judged if one.outcome.value == "ok"}),
        "not_ok": sorted({f"{one.outcome.value}: {one.reason}"[:300] for one in checks if one.outcome.value != "ok"}),
    }


def _mask(record: Any) -> str:
    spec = record.spec
    parts = ["causal" if spec.is_causal else "", f"mask {spec.mask.value}" if spec.mask.value != "none" else ""]
    parts += ["band" if record.mask_band is not None else "", "window" if spec.left_window >= 0 else ""]
    return ", ".join(part for part in parts if part) or "no mask"


def _converted(
    path: Path, folder: Path, sizes: Sequence[Mapping[str, int]], steps: dict[str, float]
) -> dict[str, dict[str, Any]]:
    """Every form: how many attentions were written in it, why not the others, and how far its outputs are off."""
    import sdpa_onnx
    from sdpa_onnx.workflows.convert.convert_model import convert_model

    model = sdpa_onnx.load(path)
    feeds = [_feeds(model, chosen, seed) for seed, chosen in enumerate(sizes)]
    expected = _run(path, feeds)
    forms: dict[str, dict[str, Any]] = {}
    for form in Form:
        result = folder / f"{form.value}.onnx"
        try:
            converted = _timed(steps, f"write {form.value}", lambda form=form: convert_model(model, form, again=True))
        except SdpaOnnxError as error:
            forms[form.value] = {"written": 0, "refused": [str(error)[:300]]}
            continue
        forms[form.value] = {
            "written": len(converted.converted),
            "refused": sorted(set(converted.refused.values())),
        }
        if not converted.converted:
            continue
        try:
            if form is Form.ATTENTION:
                _timed(steps, "convert", lambda: sdpa_onnx.convert(path, form="attention")).save(result)
            else:
                converted.model.save(result)
            forms[form.value]["off"] = _difference(expected, _run(result, feeds))
        except Exception as error:  # noqa: BLE001  # what a runtime refuses is a finding of the row
            forms[form.value]["failed"] = _in_short(error)
    return forms


def _timed(steps: dict[str, float], step: str, work: Any) -> Any:
    """Run a step and keep its processor seconds, of all threads."""
    start = time.process_time()
    try:
        return work()
    finally:
        steps[step] = round(time.process_time() - start, 2)


def _feeds(model: Any, sizes: Mapping[str, int], seed: int) -> dict[str, NDArray[np.generic]]:
    """Random inputs; masks of tokens hide the last three of the first sample."""
    generator = np.random.default_rng(seed)
    feeds: dict[str, NDArray[np.generic]] = {}
    for value in model.ir.graph.inputs:
        shape = [size if isinstance(size, int) else sizes.get(str(size.value), sizes["length"]) for size in value.shape]
        if "mask" in value.name:
            mask = np.ones(shape, value.dtype.numpy())
            mask[0, -3:] = 0
            feeds[value.name] = mask
        elif value.dtype.name.startswith("FLOAT"):
            feeds[value.name] = generator.standard_normal(shape).astype(value.dtype.numpy())
        else:
            high = 1 if "type_ids" in value.name else _IDS
            feeds[value.name] = generator.integers(0 if high == 1 else 1, high, shape).astype(value.dtype.numpy())
    return feeds


def _run(path: Path, feeds: Sequence[Arrays]) -> list[list[NDArray[np.generic]]]:
    """The outputs of a file at each set of sizes."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [session.run(None, dict(one)) for one in feeds]


def _difference(expected: Sequence[Sequence[Any]], actual: Sequence[Sequence[Any]]) -> float:
    """The largest difference over all outputs and sizes, divided by the largest number of the output.

    Infinite if a shape differs, or a number is missing on one side only.
    """
    pairs = (
        (wanted, got)
        for outputs, others in zip(expected, actual, strict=True)
        for wanted, got in zip(outputs, others, strict=True)
    )
    return max((_apart_by(wanted, got) for wanted, got in pairs), default=0.0)


def _apart_by(wanted: NDArray[np.generic], got: NDArray[np.generic]) -> float:
    finite = np.isfinite(wanted)
    if wanted.shape != got.shape or not np.array_equal(finite, np.isfinite(got)):
        return float("inf")
    expected, actual = wanted[finite].astype(np.float64), got[finite].astype(np.float64)
    if not expected.size:
        return 0.0
    return float(np.abs(expected - actual).max() / (np.abs(expected).max() or 1.0))


def _table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The table, and below it why rows are missing and attentions were refused."""
    forms = [form.value for form in Form]
    steps = ("inspect", "verify", "convert")
    header = (*_COLUMNS, *forms, "largest difference", *(f"`{step}` s" for step in steps))
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    notes = []
    for name, row in rows.items():
        if "failure" in row:
            notes.append(f"- {name}: {row['failure']}")
        if "attentions" not in row:
            continue
        lines.append(f"| {' | '.join(_cells(name, row, forms, steps))} |")
    return [*lines, "", *notes]


def _cells(name: str, row: Mapping[str, Any], forms: Sequence[str], steps: Sequence[str]) -> list[str]:
    count = row["attentions"]
    judged = f"{row['agree']} of {row['checks']}" if row.get("checks") else "-"
    cells = [name, str(row["opset"]), str(row["nodes"]), str(count), str(row["found"]), str(row["read"]), judged]
    written = row.get("forms", {})
    cells += [str(written.get(form, {}).get("written", "-")) for form in forms]
    off = [one["off"] for one in written.values() if "off" in one]
    cells.append(f"{max(off):.0e}" if off else "-")
    return cells + [f"{row['steps'][step]:.1f}" if step in row["steps"] else "-" for step in steps]


if __name__ == "__main__":
    sys.exit(main())
