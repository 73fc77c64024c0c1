"""The commands that repeat one check of a run: export the same graph, then verify it at the same sizes.

Runs nothing.
"""

import shlex
from collections.abc import Sequence

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout, MaskKind, ScaleRule
from sdpa_onnx.core.records.records import AgreementRecord
from sdpa_onnx.core.records.run_header import RunHeader

__all__ = ["repeat_commands"]

_FILE = "repeat.onnx"
_BARE_TARGET = "sdpa"


def repeat_commands(record: AgreementRecord, header: RunHeader) -> str:
    """One line of shell; for what is not a file, such as the module in torch, the run on that runtime alone."""
    if not record.form:
        return f"{header.command} --runtime {shlex.quote(record.runtime)}" if header.command else ""
    export = ["sdpa-onnx", "export", record.target, "--form", record.form]
    export += [] if record.opset is None else ["--opset", str(record.opset)]
    export += [] if record.dtype in ("", "float32") else ["--dtype", record.dtype]
    export += _spec_options(record.spec) if record.target == _BARE_TARGET and record.spec else []
    seed = ["--seed", str(record.seed)] if record.seed else []
    verify = ["sdpa-onnx", "verify", _FILE, "--runtime", record.runtime]
    for axis, size in sorted(record.axes.items()):
        verify += ["--size", f"{axis}={size}"]
    verify += ["--threads", str(header.threads)] if header.threads != 1 else []
    return f"{shlex.join([*export, *seed, '-o', _FILE])} && {shlex.join([*verify, *seed])}"


def _spec_options(spec: AttentionSpec) -> Sequence[str]:
    """The options of `export sdpa`; those at their default are left out."""
    options: dict[str, tuple[object, object]] = {
        "--q-num-heads": (spec.q_num_heads, 8),
        "--kv-num-heads": (spec.kv_num_heads, spec.q_num_heads),
        "--head-dim": (spec.head_dim, 64),
        "--v-head-dim": (spec.v_head_dim, spec.head_dim),
        "--left-window": (spec.left_window, -1),
        "--right-window": (spec.right_window, -1),
        "--softcap": (f"{spec.softcap:g}", "0"),
        "--mask": (spec.mask.value, MaskKind.NONE.value),
        "--layout": (spec.layout.value, Layout.BNSH.value),
    }
    given = [text for name, (value, usual) in options.items() if value != usual for text in (name, str(value))]
    scale = [] if isinstance(spec.scale, ScaleRule) else ["--scale", f"{spec.scale:g}"]
    flags = [name for name, is_set in (("--causal", spec.is_causal), ("--past", spec.has_past)) if is_set]
    return [*given, *scale, *flags]
