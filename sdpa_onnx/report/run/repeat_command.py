"""The command line that repeats a finding of a run from nothing: export the graph again, then verify it."""

import shlex

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout, MaskKind, ScaleRule
from sdpa_onnx.core.records.findings import Finding
from sdpa_onnx.core.records.records import AgreementRecord

__all__ = ["repeat_command"]

# The target of bare attention, whose spec is written as options. Twin: sweep/suite.py.
_BARE_TARGET = "sdpa"
_FILE = "F.onnx"


def repeat_command(finding: Finding) -> str:
    """Return the command; "" if the finding is no judgement of an output.

    Models above 1 MB are not kept in a run folder, so the graph is exported again, with the same seed.
    """
    check = finding.worst
    if not isinstance(check, AgreementRecord) or not check.target:
        return ""
    direct = finding.repeat()
    if direct:
        return direct
    words = ["sdpa-onnx", "export", check.target]
    if check.target == _BARE_TARGET and check.spec is not None:
        words += _spec_options(check.spec)
    words += ["--form", check.form] if check.form else []
    words += ["--opset", str(check.opset)] if check.opset else []
    words += ["--dtype", check.dtype] if check.dtype not in ("", "float32") else []
    words += ["--seed", str(check.seed)] if check.seed else []
    return f"{shlex.join([*words, '-o', _FILE])} && {finding.repeat(_FILE)}"


def _spec_options(spec: AttentionSpec) -> list[str]:
    """The options of `export sdpa` that differ from their defaults."""
    scale = "" if spec.scale == ScaleRule.INVERSE_SQRT else f"{spec.scale_value:.17g}"
    options = {
        "--q-num-heads": str(spec.q_num_heads),
        "--kv-num-heads": "" if spec.kv_num_heads == spec.q_num_heads else str(spec.kv_num_heads),
        "--head-dim": str(spec.head_dim),
        "--v-head-dim": "" if spec.v_head_dim == spec.head_dim else str(spec.v_head_dim),
        "--left-window": str(spec.left_window) if spec.left_window >= 0 else "",
        "--right-window": str(spec.right_window) if spec.right_window >= 0 else "",
        "--softcap": f"{spec.softcap:.17g}" if spec.softcap > 0 else "",
        "--scale": scale,
        "--mask": "" if spec.mask is MaskKind.NONE else spec.mask.value,
        "--layout": "" if spec.layout is Layout.BNSH else spec.layout.value,
    }
    flags = {"--causal": spec.is_causal, "--past": spec.has_past}
    return [
        *(word for name, value in options.items() if value for word in (name, value)),
        *(name for name, is_set in flags.items() if is_set),
    ]
