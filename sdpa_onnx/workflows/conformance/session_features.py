"""Define the conformance features of a session: several runs, of equal and of other sizes, masks and caches.

Plain data: nothing here draws, runs or judges.
"""

from sdpa_onnx.core.attention.inputs import LADDER
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.workflows.conformance.feature import CaseSize, Feature, FeatureCheck

__all__ = ["SESSION_FEATURES"]

_PLAIN = AttentionSpec(q_num_heads=3, kv_num_heads=3, head_dim=8)

SESSION_FEATURES: tuple[Feature, ...] = (
    Feature(
        slug="same-bits-twice",
        group="session",
        title="two runs on the same inputs return the same bits",
        source="required by caching and tests",
        specs=(_PLAIN,),
        sizes=(CaseSize(2, 5, 7), CaseSize(1, 31, 257)),
        spreads=(1.0,),
        check=FeatureCheck.REPEAT,
    ),
    Feature(
        slug="inputs-unchanged",
        group="session",
        title="inputs are not modified",
        source="required by callers",
        specs=(_PLAIN, AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.FLOAT)),
        sizes=(CaseSize(),),
        spreads=(4.0,),
        check=FeatureCheck.UNCHANGED,
    ),
    Feature(
        slug="sizes-in-one-session",
        group="session",
        title="large, small and large sizes again in one session",
        source="buffers from earlier sizes may be stale",
        specs=(AttentionSpec(q_num_heads=3, kv_num_heads=3, head_dim=8, is_causal=True),),
        sizes=(CaseSize(3, 19, 23), CaseSize(1, 2, 3), CaseSize(2, 17, 31), CaseSize(1, 1, 1), CaseSize(3, 19, 23)),
        spreads=(LADDER[1],),
    ),
    Feature(
        slug="one-key-first",
        group="session",
        title="a first run with one key, then more keys, in one session",
        source="the sizes of the first run must not affect later runs",
        specs=(_PLAIN,),
        sizes=(CaseSize(2, 1, 1), CaseSize(1, 31, 37), CaseSize(2, 5, 7)),
        spreads=(1.0,),
    ),
    Feature(
        slug="masks-in-one-session",
        group="session",
        title="other masks and sizes in one session",
        source="a mask of an earlier run must not be used again",
        specs=(AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.FLOAT),),
        sizes=(CaseSize(2, 5, 7), CaseSize(1, 2, 3), CaseSize(2, 17, 31), CaseSize(2, 5, 7)),
        spreads=(1.0, 4.0),
    ),
    Feature(
        slug="caches-in-one-session",
        group="session",
        title="caches of other lengths in one session",
        source="a cache of an earlier run must not be used again",
        specs=(AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, has_past=True),),
        sizes=(CaseSize(1, 1, 1, 1), CaseSize(2, 3, 3, 19), CaseSize(1, 1, 1, 5), CaseSize(2, 3, 3, 19)),
        spreads=(1.0, 4.0),
    ),
    Feature(
        slug="empty-in-one-session",
        group="session",
        title="a run without queries between other runs of one session",
        source="ONNX tensors may have a dimension of 0; nothing of it must remain",
        specs=(_PLAIN,),
        sizes=(CaseSize(2, 5, 7), CaseSize(2, 0, 7), CaseSize(1, 2, 3), CaseSize(2, 5, 7)),
        spreads=(1.0,),
    ),
    Feature(
        slug="outputs-kept",
        group="session",
        title="an output does not change during the next run",
        source="a view of the runtime's own memory changes with the next run",
        specs=(_PLAIN,),
        spreads=(1.0,),
        check=FeatureCheck.KEPT,
    ),
)
