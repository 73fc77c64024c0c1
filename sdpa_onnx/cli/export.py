"""`sdpa-onnx export`: a target becomes an ONNX file, proved before it is called done."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sdpa_onnx.cli.error_boundary import DISAGREES, OK, guarded, pin_threads, tell
from sdpa_onnx.cli.options import (
    AUTO_SECONDS,
    PATIENCE_SECONDS,
    TIMEOUT_HINT,
    AutoSeconds,
    AutoSizes,
    Debug,
    DtypeName,
    Json,
    MaskName,
    Output,
    Seed,
    Timeout,
    check_auto_options,
    parse_size_sets,
)
from sdpa_onnx.cli.output_checks import check_output
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.cli.show import show_records
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
    from sdpa_onnx.graph.model import OnnxModel
    from sdpa_onnx.runtimes.base import Runtime
    from sdpa_onnx.workflows.export.export_for_runtime import WrittenExport
    from sdpa_onnx.workflows.export.export_target import ExportResult

__all__ = ["export"]

BARE = "sdpa"
_ATTENTION_OPSET = 23

Target = Annotated[
    str,
    typer.Argument(
        help="A name of the catalog; encoder-self, ...; sdpa with flags; package.module:Class; file.py:Class(args).",
        show_default=False,
    ),
]
FormName = Literal["attention", "decomposed", "blocked", "ort-mha", "ort-gqa", "auto"]
Opset = Annotated[int | None, typer.Option("--opset", help="18 to 25. Default: 23.", show_default=False)]
Shapes = Annotated[
    list[str], typer.Option("--shape", metavar="NAME=2x16x512", help="Sample input of a class; :dtype may follow.")
]
ElementType = Annotated[
    DtypeName | None,
    typer.Option(
        "--dtype", help="Element type; a class is converted. Default: float32; a class as it is.", show_default=False
    ),
]
DynamicAxes = Annotated[
    list[str], typer.Option("--dynamic", metavar="NAME=0,1", help="Axes of an input that change, if not the usual.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What the command line asks for, as types."""

    what: "AttentionSpec | str"
    opset: int
    form: FormName | None
    dtype: "Dtype | None"
    shapes: Mapping[str, tuple[tuple[int, ...], str]] | None
    dynamic_axes: Mapping[str, tuple[int, ...]] | None
    at: tuple[Mapping[str, int], ...] = ()
    seconds: float | None = None
    opset_is_given: bool = True

    def make(self) -> "OnnxModel":
        """Do the export."""
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
        """Write the export for its runtime: with workarounds, or in its fastest form."""
        from sdpa_onnx.runtimes.base import get_runtime
        from sdpa_onnx.workflows.choose_form.choose import RaceBudget
        from sdpa_onnx.workflows.export.export_for_runtime import with_fastest_form, with_workarounds

        if self.form != "auto":
            return with_workarounds(model, where)
        budget = RaceBudget(seconds=AUTO_SECONDS if self.seconds is None else self.seconds)
        opset = self.opset if self.opset_is_given else None
        return with_fastest_form(model, get_runtime(where.name), budget, at=self.at, opset=opset, on_step=on_step)


@guarded
def export(
    target: Target,
    output: Output,
    *,
    opset: Opset = None,
    form: Annotated[FormName | None, typer.Option("--form", help="Default: by the opset.", show_default=False)] = None,
    dtype: ElementType = None,
    q_num_heads: Annotated[int, typer.Option("--q-num-heads", help="sdpa: query heads.")] = 8,
    kv_num_heads: Annotated[int | None, typer.Option("--kv-num-heads", help="sdpa: key/value heads.")] = None,
    head_dim: Annotated[int, typer.Option("--head-dim", help="sdpa: width of a head, d_k.")] = 64,
    v_head_dim: Annotated[int | None, typer.Option("--v-head-dim", help="sdpa: width of a value head.")] = None,
    causal: Annotated[bool, typer.Option("--causal", help="sdpa: query i sees key j iff j <= i + offset.")] = False,
    left_window: Annotated[int, typer.Option("--left-window", help="sdpa: keys seen to the left; -1 = all.")] = -1,
    right_window: Annotated[int, typer.Option("--right-window", help="sdpa: the same to the right.")] = -1,
    softcap: Annotated[float, typer.Option("--softcap", help="sdpa: cap on the scores; 0 = off.")] = 0.0,
    scale: Annotated[float | None, typer.Option("--scale", help="sdpa: default 1/sqrt(d_k).")] = None,
    mask: Annotated[MaskName, typer.Option("--mask", help="sdpa: kind of mask input.")] = "none",
    past: Annotated[bool, typer.Option("--past", help="sdpa: with a cache of past keys and values.")] = False,
    layout: Annotated[Literal["bnsh", "bsh"], typer.Option("--layout", help="sdpa: 4-D or 3-D tensors.")] = "bnsh",
    shape: Shapes = [],
    dynamic: DynamicAxes = [],
    runtime: Annotated[str, typer.Option("--runtime", help="Where it is proved.")] = "ort-cpu",
    at: AutoSizes = [],
    seconds: AutoSeconds = None,
    timeout: Timeout = PATIENCE_SECONDS,
    seed: Seed = 0,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Export a target, prove its axes and numbers, and only then write it."""
    pin_threads(1)
    from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout, MaskKind, ScaleRule

    what = _named(target) or AttentionSpec(
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
        opset=_ATTENTION_OPSET if opset is None else opset,
        form=_form(what, form, _ATTENTION_OPSET if opset is None else opset),
        dtype=None if dtype is None else Dtype(dtype),
        shapes=parse_shapes(shape),
        dynamic_axes=parse_axes(dynamic),
        at=parse_size_sets(at),
        seconds=seconds,
        opset_is_given=opset is not None,
    )
    exported = _export(request, target, output, runtime, seed=seed, patience_seconds=timeout)
    return _show(exported, output, as_json=json, is_usual=form is None)


def _named(target: str) -> "AttentionSpec | str | None":
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


def _tell_one_length(request: ExportRequest) -> None:
    from sdpa_onnx.workflows.export.export_target import has_one_length

    if has_one_length(request.what, request.form):
        tell("query and key share one length, which GroupQueryAttention needs")


def _show(exported: "ExportResult", output: Path, *, as_json: bool, is_usual: bool) -> int:
    from sdpa_onnx.report.run.form_table import limits_of_chosen, told_forms

    is_timed = any(form.median_seconds for form in exported.forms)
    forms = exported.forms if as_json else told_forms(exported.forms) if is_timed else ()
    show_records([exported.record, *exported.agreement, *forms], as_json=as_json)
    if is_timed and not as_json:
        for line in limits_of_chosen(exported.forms):
            tell(f"warning: {line}")
    if exported.forms:
        from sdpa_onnx.workflows.export.export_for_runtime import workaround_words

        for line in workaround_words(exported.forms):
            tell(line)
    if not exported.is_right:
        tell(f"{output} was not written: {_why(exported)}")
        return DISAGREES
    tell(f"wrote {output}{_fallback_words(exported) if is_usual else ''}")
    return OK


def _why(exported: "ExportResult") -> str:
    """The reason and what to do about it."""
    from sdpa_onnx.core.records.records import Outcome

    record = exported.record
    if any(setting.setting == "scale" for setting in record.settings):
        advice = (
            "Compute the scale from the size in one expression that torch can follow, such as 1.0 / key.shape[-2] or "
            "math.log(key.shape[-2]), or multiply the query by it and give scale=1.0; or keep that axis fixed with "
            "--dynamic."
        )
    elif record.settings or record.baked:
        advice = "Let the code follow the size, or keep that axis fixed with --dynamic."
    elif record.outcome is Outcome.TIMED_OUT:
        return f"{record.reason} {TIMEOUT_HINT}"
    elif exported.forms and not exported.agreement:
        if any(form.outcome is Outcome.TIMED_OUT for form in exported.forms):
            return f"{record.reason} {TIMEOUT_HINT}"
        return f"{record.reason.rstrip('.')}. Choose another form, opset or runtime."
    else:
        return f"see what disagrees above.{_older(record.opset)}"
    return f"{record.reason.rstrip('.')}. {advice}"


def _older(opset: int) -> str:
    return " On this runtime --opset 18 may be right." if opset >= _ATTENTION_OPSET else ""


def _fallback_words(exported: "ExportResult") -> str:
    """A word when an opset that has the Attention operator got the formula instead."""
    record, sites = exported.record, exported.model.sites
    if record.form != "decomposed" or record.opset < _ATTENTION_OPSET or not sites:
        return ""
    from sdpa_onnx.graph.attention_node import minimum_opset

    return f" in form decomposed: the Attention operator can say this from opset {minimum_opset(sites[0].spec)} on"


def _export(
    request: ExportRequest, target: str, output: Path, runtime: str, *, seed: int, patience_seconds: float
) -> "ExportResult":
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.export.export_target import export_and_prove

    check_output(output)
    check_auto_options(request.form, request.at, request.seconds)
    _check_options(request, target)
    pick_runtimes([runtime])
    with Progress(10.0) as progress:
        progress.at(f"exporting {target}")
        exported = export_and_prove(
            request.make,
            target=target,
            runtime=runtime,
            path=output,
            seed=seed,
            on_size=lambda done, of: progress.at(f"proving axes: {done} of {of} sizes"),
            patience_seconds=patience_seconds,
            write=lambda model, where: request.write(model, where, progress.at),
        )
    _tell_one_length(request)
    return exported


def _check_options(request: ExportRequest, target: str) -> None:
    """Refuse options that only a class takes."""
    if not isinstance(request.what, str) and (request.shapes or request.dynamic_axes):
        option = "--shape" if request.shapes else "--dynamic"
        raise PlanError(f"{option} does not go with '{target}', whose inputs are known; it is for a class.")


def _form(what: object, form: FormName | None, opset: int) -> FormName | None:
    """The form asked for; a module cannot have the operator at an opset that does not have it."""
    if isinstance(what, str) and form == "attention" and opset < _ATTENTION_OPSET:
        raise PlanError(
            f"A module at opset {opset} cannot be exported in form 'attention'.", hint="Use --opset 23 or higher."
        )
    return form


def parse_shapes(texts: list[str]) -> dict[str, tuple[tuple[int, ...], str]] | None:
    """Read NAME=2x16x512 or NAME=2x16:int64 options; None if there are none.

    Raises:
        PlanError: If one is of another form.
    """
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for text in texts:
        found = re.fullmatch(r"([A-Za-z_]\w*)=(\d+(?:x\d+)*)(?::(\w+))?", text)
        if found is None:
            raise PlanError(f"--shape {text} is not of the form NAME=2x16x512.", hint="A type may follow: :int64.")
        shapes[found[1]] = (tuple(int(size) for size in found[2].split("x")), found[3] or "float32")
    return shapes or None


def parse_axes(texts: list[str]) -> dict[str, tuple[int, ...]] | None:
    """Read NAME=0,1 options; NAME= alone means none; None if there are no options.

    Raises:
        PlanError: If one is of another form.
    """
    axes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        found = re.fullmatch(r"([A-Za-z_]\w*)=((?:\d+(?:,\d+)*)?)", text)
        if found is None:
            raise PlanError(f"--dynamic {text} is not of the form NAME=0,1.", hint="Axes count from 0.")
        axes[found[1]] = tuple(int(axis) for axis in found[2].split(",") if axis)
    return axes or None
