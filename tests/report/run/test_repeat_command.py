"""The command that repeats a finding can be parsed, and makes the same attention."""

import shlex

import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout, MaskKind, ScaleRule
from sdpa_onnx.core.records.findings import group_findings
from sdpa_onnx.core.records.records import Outcome, Verdict
from sdpa_onnx.report.run.repeat_command import repeat_command
from tests.report.synthetic import check


def command_of(**fields: object) -> list[str]:
    wrong = check(outcome=Outcome.DISAGREES, verdict=Verdict.WRONG, max_bound_ratio=9.0, **fields)
    return shlex.split(repeat_command(group_findings([wrong])[0]))


def test_every_option_of_a_spec() -> None:
    """Options at their defaults are left out; the others have their exact values."""
    spec = AttentionSpec(
        q_num_heads=8,
        kv_num_heads=2,
        head_dim=64,
        v_head_dim=32,
        is_causal=True,
        left_window=5,
        right_window=0,
        mask=MaskKind.BOOL,
        softcap=0.1,
        scale=ScaleRule.INVERSE,
        has_past=True,
        layout=Layout.BSH,
    )
    text = " ".join(command_of(spec=spec, seed=3, axes={"q_seq_len": 7}))
    assert text == (
        "sdpa-onnx export sdpa --q-num-heads 8 --kv-num-heads 2 --head-dim 64 --v-head-dim 32 --left-window 5 "
        "--right-window 0 --softcap 0.10000000000000001 --scale 0.015625 --mask bool --layout bsh --causal --past "
        "--form attention --opset 23 --seed 3 -o F.onnx && sdpa-onnx verify F.onnx --runtime ort-cpu --seed 3 "
        "--size q_seq_len=7"
    )


@pytest.mark.parametrize(
    ("target", "start"),
    [
        ("gpt2/self", ["sdpa-onnx", "export", "gpt2/self", "--form"]),
        ("my model.onnx", ["sdpa-onnx", "verify", "my model.onnx", "--runtime"]),
    ],
)
def test_other_targets(target: str, start: list[str]) -> None:
    """A module is exported by its name, a file is verified as it is."""
    assert command_of(target=target)[:4] == start
