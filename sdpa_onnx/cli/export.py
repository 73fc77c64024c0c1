"""`sdpa-onnx export`: export a target to an ONNX file, which is verified before it is written."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sdpa_onnx.cli.detail import Detail, requested_detail
from sdpa_onnx.cli.error_boundary import DISAGREES, OK, print_note, with_exit_codes
from sdpa_onnx.cli.expect import exit_code
from sdpa_onnx.cli.help.completion import complete_target
from sdpa_onnx.cli.help.layout import SDPA_GROUP
from sdpa_onnx.cli.options import (
    AUTO_SECONDS,
    PATIENCE_SECONDS,
    TIMEOUT_HINT,
    AutoSeconds,
    AutoSizes,
    BenchBudget,
    Debug,
    DtypeName,
    Json,
    MaskName,
    Output,
    Quiet,
    Seed,
    Timeout,
    Verbose,
    check_auto_options,
    parse_size_sets,
    run_option,
)
from sdpa_onnx.cli.output_checks import check_output
from sdpa_onnx.cli.process.shared_processes import with_shared_processes
from sdpa_onnx.cli.show import print_json, print_plain, show_result
from sdpa_onnx.cli.step_progress import LADDER_RUNS, StepProgress
from sdpa_onnx.cli.time_limit import command_deadline
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout, MaskKind, ScaleRule
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.graph.model import OnnxModel
    from sdpa_onnx.measure.deadline import Deadline
    from sdpa_onnx.runtimes.base import Runtime
    from sdpa_onnx.workflows.bench.within_limit import TimedBench
    from sdpa_onnx.workflows.export.export_for_runtime import WrittenExport
    from sdpa_onnx.workflows.export.export_target import ExportResult

__all__ = ["export"]

BARE = "sdpa"
_ATTENTION_OPSET = 23

_sdpa_option = partial(typer.Option, rich_help_panel=SDPA_GROUP)

Target = Annotated[
    str,
    typer.Argument(
        help="Catalog name; encoder-self, ...; sdpa with options; package.module:Class; file.py:Class(args). "
        "Exporting a module runs its code.",
        show_default=False,
        autocompletion=complete_target,
    ),
]
FormName = Literal["attention", "decomposed", "blocked", "ort-mha", "ort-gqa", "auto"]
Opset = Annotated[int | None, typer.Option("--opset", help="Opset, 18 to 25. Default: 23.", show_default=False)]
Shapes = Annotated[
    list[str],
    typer.Option("--shape", metavar="NAME=2x16x512", help="Sample input of a class; append :dtype if needed."),
]
FormOption = Annotated[
    FormName | None, typer.Option("--form", help="Graph form. Default: by opset.", show_default=False)
]
ElementType = Annotated[
    DtypeName | None,
    typer.Option("--dtype", help="Element type. Default: float32, or the type that a class has.", show_default=False),
]
Bench = Annotated[bool, typer.Option("--bench", help="Then time the file against the module, if it is right.")]
DynamicAxes = Annotated[
    list[str], typer.Option("--dynamic", metavar="NAME=0,1", help="Dynamic axes of an input, if not the default ones.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """The parsed options of the command line."""

    what: "AttentionSpec | str"
    requested_opset: int | None
    form: FormName | None
    dtype: "Dtype | None"
    shapes: Mapping[str, tuple[tuple[int, ...], str]] | None
    dynamic_axes: Mapping[str, tuple[int, ...]] | None
    at: tuple[Mapping[str, int], ...] = ()
    seconds: float | None = None

    @property
    def opset(self) -> int:
        """The opset that was requested, else the usual one."""
        return _ATTENTION_OPSET if self.requested_opset is None else self.requested_opset

    def make(self) -> "OnnxModel":
        """Export the target."""
        from sdpa_onnx.workflows.export.export_target import export_target

        return export_target(
            self.what,
            opset=self.opset,
            form=None if self.form == "auto" else self.form,
            dtype=self.dtype,
            shapes=self.shapes,
            dynamic_axes=self.dynamic_axes,
        )

    def write(self, model: "OnnxModel", where: "Runtime", on_step: Callable[[str], None]) -> "WrittenExport":
        """Rewrite the exported model for its runtime: with workarounds, or in its fastest form."""
        from sdpa_onnx.runtimes.base import get_runtime
        from sdpa_onnx.workflows.choose_form.choose import RaceBudget
        from sdpa_onnx.workflows.export.export_for_runtime import with_fastest_form, with_workarounds

        if self.form != "auto":
            return with_workarounds(model, where)
        budget = RaceBudget(seconds=AUTO_SECONDS if self.seconds is None else self.seconds)
        return with_fastest_form(
            model, get_runtime(where.name), budget, at=self.at, opset=self.requested_opset, on_step=on_step
        )


@with_exit_codes
@with_shared_processes
def export(
    target: Target,
    output: Output,
    *,
    opset: Opset = None,
    form: FormOption = None,
    dtype: ElementType = None,
    q_num_heads: Annotated[int, _sdpa_option("--q-num-heads", help="Query heads.")] = 8,
    kv_num_heads: Annotated[int | None, _sdpa_option("--kv-num-heads", help="Key/value heads.")] = None,
    head_dim: Annotated[int, _sdpa_option("--head-dim", help="Width of a head, d_k.")] = 64,
    v_head_dim: Annotated[int | None, _sdpa_option("--v-head-dim", help="Width of a value head.")] = None,
    causal: Annotated[bool, _sdpa_option("--causal", help="Query i sees key j iff j <= i + offset.")] = False,
    left_window: Annotated[int, _sdpa_option("--left-window", help="Keys seen to the left; -1 = all.")] = -1,
    right_window: Annotated[int, _sdpa_option("--right-window", help="Keys seen to the right; -1 = all.")] = -1,
    softcap: Annotated[float, _sdpa_option("--softcap", help="Cap on the scores; 0 = off.")] = 0.0,
    scale: Annotated[float | None, _sdpa_option("--scale", help="Default 1/sqrt(d_k).")] = None,
    mask: Annotated[MaskName, _sdpa_option("--mask", help="Kind of mask input.")] = "none",
    past: Annotated[bool, _sdpa_option("--past", help="With a cache of past keys and values.")] = False,
    layout: Annotated[Literal["bnsh", "bsh"], _sdpa_option("--layout", help="4-D or 3-D tensors.")] = "bnsh",
    shape: Shapes = [],
    dynamic: DynamicAxes = [],
    runtime: Annotated[str, run_option("--runtime", help="Runtime that verifies the file.")] = "ort-cpu",
    at: AutoSizes = [],
    seconds: AutoSeconds = None,
    timeout: Timeout = PATIENCE_SECONDS,
    bench: Bench = False,
    budget: BenchBudget = None,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Export a target, verify its axes and outputs, and write it only if they are right."""
    what = _named_target(target) or AttentionSpec(
        q_num_heads=q_num_heads,
        kv_num_heads=q_num_heads if kv_num_heads is None else kv_num_heads,
        head_dim=head_dim,
        v_head_dim=head_dim if v_head_dim is None else v_head_dim,
        is_causal=causal,
        left_window=left_window,
        right_window=right_window,
        mask=MaskKind(mask),
        softcap=softcap,
        scale=ScaleRule.INVERSE_SQRT if scale is None else scale,
        has_past=past,
        layout=Layout(layout),
    )
    request = ExportRequest(
        what=what,
        requested_opset=opset,
        form=_form(what, form, _ATTENTION_OPSET if opset is None else opset),
        dtype=Dtype(dtype) if dtype else None,
        shapes=parse_shapes(shape),
        dynamic_axes=parse_axes(dynamic),
        at=parse_size_sets(at),
        seconds=seconds,
    )
    exported, timed = _export(request, target, output, runtime, seed, timeout, _bench_until(budget, bench=bench))
    return _show(exported, output, as_json=json, is_usual=form is None, timed=timed)


def _named_target(target: str) -> "AttentionSpec | str | None":
    """The spec that the catalogue has under a name, else the target itself; None of the one that options describe.

    A misspelt target is refused before torch is loaded.
    """
    from sdpa_onnx.catalog import entry_names, find_entry
    from sdpa_onnx.torch_export.target_text import check_target

    if target == BARE:
        return None
    if target in entry_names():
        return find_entry(target).spec
    check_target(target)
    return target


def _print_shared_length(request: ExportRequest) -> None:
    from sdpa_onnx.workflows.export.export_target import has_one_length

    if has_one_length(request.what, request.form):
        print_note("query and key share one length, because GroupQueryAttention requires it")


def _show(
    exported: "ExportResult", output: Path, *, as_json: bool, is_usual: bool, timed: "TimedBench | None" = None
) -> int:
    note = _fallback_note(exported) if is_usual and exported.is_right else ""
    if as_json:
        more = [] if timed is None else timed.records
        print_json([exported.record, *exported.agreement, *exported.forms, *more])
        _print_notes(exported, output, note=note)
    else:
        from sdpa_onnx.cli.bench_export import show_timed_export
        from sdpa_onnx.report.run.export_text import export_result

        advice = "" if exported.is_right else _advice(exported)
        show_result(export_result(exported, str(output), advice=advice, note=note, is_timed=timed is not None))
        if timed is not None and requested_detail() is not Detail.QUIET:
            print_plain([""])
            show_timed_export(timed)
    if not exported.is_right:
        return DISAGREES
    return OK if timed is None else exit_code(timed.records, None)


def _print_notes(exported: "ExportResult", output: Path, *, note: str) -> None:
    """Print next to JSON what the text has, on stderr."""
    if exported.forms:
        from sdpa_onnx.workflows.export.export_for_runtime import workaround_words

        for line in workaround_words(exported.forms):
            print_note(line)
    if not exported.is_right:
        print_note(f"{output} was not written: {_failure_reason(exported)}")
        return
    if exported.record.limits:
        from sdpa_onnx.report.run.limits_table import limit_in_words

        for limit in exported.record.limits:
            print_note(f"warning: {output} {limit_in_words(limit)}")
    print_note(f"wrote {output}{note}")


def _failure_reason(exported: "ExportResult") -> str:
    """Return the reason and what to do about it, in one line."""
    from sdpa_onnx.core.records.findings import group_findings

    found = group_findings([exported.record, *exported.agreement])
    reason = exported.record.reason or (found[0].sentence if found else "it could not be verified.")
    return f"{reason.rstrip('.')}. {_advice(exported)}".strip()


def _advice(exported: "ExportResult") -> str:
    """Return what to do about an export that is not written; "" if nothing is known to help."""
    from sdpa_onnx.core.records.records import Outcome

    record = exported.record
    if any(setting.setting == "scale" for setting in record.settings):
        return (
            "Compute the scale from the size in one expression that torch can trace, such as 1.0 / key.shape[-2] or "
            "math.log(key.shape[-2]), or multiply the query by it and pass scale=1.0, or keep that axis fixed with "
            "--dynamic."
        )
    if record.settings or record.baked:
        return "Change the code so that it uses the size of the input, or keep that axis fixed with --dynamic."
    if Outcome.TIMED_OUT in (record.outcome, *(form.outcome for form in exported.forms)):
        return TIMEOUT_HINT
    if exported.forms and not exported.agreement:
        return "Choose another form, opset or runtime."
    return _older_opset_hint(record.opset)


def _older_opset_hint(opset: int | None) -> str:
    return (
        "Try --opset 18, which may be right on this runtime." if opset is not None and opset >= _ATTENTION_OPSET else ""
    )


def _fallback_note(exported: "ExportResult") -> str:
    """Return a note if the file is decomposed although its opset has the Attention operator."""
    record, sites = exported.record, exported.model.sites
    if record.form != "decomposed" or record.opset is None or record.opset < _ATTENTION_OPSET or not sites:
        return ""
    from sdpa_onnx.graph.attention_node import minimum_opset

    return f" in form decomposed: the Attention operator supports this from opset {minimum_opset(sites[0].spec)} on"


def _export(
    request: ExportRequest,
    target: str,
    output: Path,
    runtime: str,
    seed: int,
    patience_seconds: float,
    bench_until: "Deadline | None",
) -> "tuple[ExportResult, TimedBench | None]":
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.export.export_target import export_and_prove

    check_output(output)
    check_auto_options(request.form, request.at, request.seconds)
    _check_options(request, target)
    pick_runtimes([runtime])
    with StepProgress(f"exporting {target}") as progress:
        exported = export_and_prove(
            request.make,
            target=target,
            runtime=runtime,
            path=output,
            seed=seed,
            on_size=progress.sizes("proving axes", after=None if request.form in ("blocked", "auto") else LADDER_RUNS),
            patience_seconds=patience_seconds,
            write=lambda model, where: request.write(model, where, progress.at),
        )
    _print_shared_length(request)
    if bench_until is None or not exported.is_right:
        return exported, None
    from sdpa_onnx.cli.bench_export import time_export

    return exported, time_export(
        exported.model,
        output,
        runtime=runtime,
        seed=seed,
        patience_seconds=patience_seconds,
        deadline=bench_until,
    )


def _bench_until(budget: float | None, *, bench: bool) -> "Deadline | None":
    """When the timing must end; None without --bench."""
    if budget is not None and not bench:
        raise PlanError("--budget requires --bench, which it limits.", hint="Leave out --budget.")
    return command_deadline(budget) if bench else None


def _check_options(request: ExportRequest, target: str) -> None:
    """Reject options that only a class accepts."""
    if not isinstance(request.what, str) and (request.shapes or request.dynamic_axes):
        option = "--shape" if request.shapes else "--dynamic"
        raise PlanError(f"{option} applies only to a class; the inputs of '{target}' are known.")


def _form(what: object, form: FormName | None, opset: int) -> FormName | None:
    """Return the requested form, after a check that the opset of a module has the operator for it."""
    if isinstance(what, str) and form == "attention" and opset < _ATTENTION_OPSET:
        raise PlanError(
            f"A module at opset {opset} cannot be exported in form 'attention'.", hint="Use --opset 23 or higher."
        )
    return form


def parse_shapes(texts: list[str]) -> dict[str, tuple[tuple[int, ...], str]] | None:
    """Parse NAME=2x16x512 or NAME=2x16:int64 options; None if there are none.

    Raises:
        PlanError: If one is malformed.
    """
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for text in texts:
        found = re.fullmatch(r"([A-Za-z_]\w*)=(\d+(?:x\d+)*)(?::(\w+))?", text)
        if found is None:
            raise PlanError(
                f"--shape {text} is not of the form NAME=2x16x512.", hint="Append a type if needed: :int64."
            )
        shapes[found[1]] = (tuple(int(size) for size in found[2].split("x")), found[3] or "float32")
    return shapes or None


def parse_axes(texts: list[str]) -> dict[str, tuple[int, ...]] | None:
    """Parse NAME=0,1 options; NAME= alone means no axis. None if there are no options.

    Raises:
        PlanError: If one is malformed.
    """
    axes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        found = re.fullmatch(r"([A-Za-z_]\w*)=((?:\d+(?:,\d+)*)?)", text)
        if found is None:
            raise PlanError(f"--dynamic {text} is not of the form NAME=0,1.", hint="Axes count from 0.")
        axes[found[1]] = tuple(int(axis) for axis in found[2].split(",") if axis)
    return axes or None
