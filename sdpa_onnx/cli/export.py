"""`sdpa-onnx export`: a target becomes an ONNX file, proved before it is called done."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sdpa_onnx.cli.guard import DISAGREES, OK, guarded, pin_threads, tell
from sdpa_onnx.cli.options import PATIENCE_SECONDS, Debug, DtypeName, Json, MaskName, Output, Seed, Timeout
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.cli.show import show_records
from sdpa_onnx.errors import ModelError, PlanError

if TYPE_CHECKING:
    from sdpa_onnx.core.spec import AttentionSpec, Dtype
    from sdpa_onnx.graph.model import OnnxModel
    from sdpa_onnx.workflows.export import Exported

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
FormName = Literal["attention", "decomposed"]
Opset = Annotated[int, typer.Option("--opset", help="18 to 25.")]
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

    def make(self) -> "OnnxModel":
        """Do the export."""
        from sdpa_onnx.workflows.export import export_target

        return export_target(
            self.what,
            opset=self.opset,
            form=self.form,
            dtype=self.dtype,
            shapes=self.shapes,
            dynamic_axes=self.dynamic_axes,
        )


@guarded
def export(
    target: Target,
    output: Output,
    *,
    opset: Opset = _ATTENTION_OPSET,
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
    timeout: Timeout = PATIENCE_SECONDS,
    seed: Seed = 0,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Export a target, prove its axes and numbers, and only then write it."""
    pin_threads(1)
    _check_output(output)
    from sdpa_onnx.catalog import entry_names, find_entry
    from sdpa_onnx.core.spec import AttentionSpec, Dtype, Layout, MaskKind, ScaleRule

    what: AttentionSpec | str = find_entry(target).spec if target in entry_names() else target
    if target == BARE:
        what = AttentionSpec(
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
    _check_target(what, target, shape, dynamic)
    request = ExportRequest(
        what=what,
        opset=opset,
        form=_form(what, form, opset),
        dtype=None if dtype is None else Dtype(dtype),
        shapes=parse_shapes(shape),
        dynamic_axes=parse_axes(dynamic),
    )
    return _show(_export(request, target, output, runtime, seed=seed, patience_seconds=timeout), output, as_json=json)


def _show(exported: "Exported", output: Path, *, as_json: bool) -> int:
    show_records([exported.record, *exported.agreement], as_json=as_json)
    if not exported.is_right:
        tell(f"{output} was not written: {_why(exported)}")
        return DISAGREES
    tell(f"wrote {output}{_fallback_words(exported)}")
    return OK


def _why(exported: "Exported") -> str:
    """The reason and what to do about it."""
    record = exported.record
    if any(setting.setting == "scale" for setting in record.settings):
        advice = (
            "Compute the scale from the size in one expression that torch can follow, such as 1.0 / key.shape[-2] or "
            "math.log(key.shape[-2]), or multiply the query by it and give scale=1.0; or keep that axis fixed with "
            "--dynamic."
        )
    elif record.settings or record.baked:
        advice = "Let the code follow the size, or keep that axis fixed with --dynamic."
    else:
        return f"see what disagrees above.{_older(record.opset)}"
    return f"{record.reason.rstrip('.')}. {advice}"


def _older(opset: int) -> str:
    return " On this runtime --opset 18 may be right." if opset >= _ATTENTION_OPSET else ""


def _fallback_words(exported: "Exported") -> str:
    """A word when an opset that has the Attention operator got the formula instead."""
    record, sites = exported.record, exported.model.sites
    if record.form == "attention" or record.opset < _ATTENTION_OPSET or not sites:
        return ""
    from sdpa_onnx.graph.attention_node import minimum_opset

    return f" in form decomposed: the Attention operator can say this from opset {minimum_opset(sites[0].spec)} on"


def _export(
    request: ExportRequest, target: str, output: Path, runtime: str, *, seed: int, patience_seconds: float
) -> "Exported":
    from sdpa_onnx.workflows.export import export_and_prove
    from sdpa_onnx.workflows.survey import pick_runtimes

    pick_runtimes([runtime])
    with Progress(10.0) as progress:
        progress.at(f"exporting {target}")
        return export_and_prove(
            request.make,
            target=target,
            runtime=runtime,
            path=output,
            seed=seed,
            on_size=lambda done, of: progress.at(f"proving axes: {done} of {of} sizes"),
            patience_seconds=patience_seconds,
        )


def _check_output(output: Path) -> None:
    """Find out now, not after the export, that the file cannot be written."""
    if output.is_dir():
        raise ModelError(f"{output} is a directory.", hint="Give the name of a file.")
    if not output.parent.is_dir():
        raise ModelError(f"Cannot write {output}: there is no folder {output.parent}.")
    if not os.access(output.parent, os.W_OK):
        raise ModelError(f"Cannot write {output}: {output.parent} is not writable.")


def _check_target(what: object, target: str, shapes: list[str], axes: list[str]) -> None:
    """Refuse a misspelt target before torch is loaded, and options that only a class takes."""
    if isinstance(what, str):
        from sdpa_onnx.torch_export.target_text import check_target

        check_target(what)
    if (shapes or axes) and not isinstance(what, str):
        option = "--shape" if shapes else "--dynamic"
        raise PlanError(f"{option} does not go with '{target}', whose inputs are known; it is for a class.")


def _form(what: object, form: FormName | None, opset: int) -> FormName | None:
    """The form asked for; for a module the opset decides, and another one is refused."""
    implied = "attention" if opset >= _ATTENTION_OPSET else "decomposed"
    if isinstance(what, str) and form not in (None, implied):
        raise PlanError(
            f"A module at opset {opset} is exported in form '{implied}', not '{form}'.",
            hint="Use --opset 23 or higher for 'attention', 18 to 22 for 'decomposed'.",
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
