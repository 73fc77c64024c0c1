"""Random attention problems by seed, for the scripts that measure false alarms and power. Verifies nothing."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, numpy_dtype
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]

RANGES = ("usual", "wide", "tiny", "shared")

# Reasons why rows of a problem share errors: few distinct queries, one key with most of the weight, few directions,
# parallel keys with large logits.
_SHARED_KINDS = ("repeated", "nearly-repeated", "peaked", "low-rank", "parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One problem: its index in the sequence of a seed, and its float32 inputs before conversion."""

    name: str
    case: AttentionCase
    inputs: AttentionInputs

    def stored(self, dtype: Dtype) -> tuple[AttentionCase, AttentionInputs]:
        """The case and the inputs in an element type."""
        kind = numpy_dtype(dtype)
        arrays = {
            name: array if array.dtype == np.bool_ else array.astype(kind)
            for name, array in self.inputs.named().items()
        }
        return replace(self.case, dtype=dtype), AttentionInputs(**arrays)


def draw(range_name: str, seed: int, index: int) -> Drawn:
    """Draw one problem.

    Args:
        range_name: "usual" (METHOD A.8: widths 32 to 128, up to 384 keys, spread 0.3, 1 or 4, value scale 1e-3 to
            100), "wide" (its hold-out: widths 16 to 256, 7 to 1500 keys, spread 0.05 to 30, value scale 1e-3 to
            1e3, offsets, heavy-tailed keys, outlier channels), "tiny" (one to a few of everything), or "shared"
            (rows that are not independent: few keys for many heads, queries that are equal or nearly so, ...).
        seed: Seed of the sequence.
        index: Position in the sequence.
    """
    rng = np.random.default_rng([seed, RANGES.index(range_name), index])
    match range_name:
        case "usual":
            case, spread, value_scale = _usual(rng)
        case "wide":
            case, spread, value_scale = _wide(rng)
        case "shared":
            return _shared(rng, name=f"{range_name}/{seed}/{index}")
        case _:
            case, spread, value_scale = _tiny(rng)
    inputs = _inputs(case, rng, spread=spread, value_scale=value_scale, spoil=range_name == "wide")
    return Drawn(name=f"{range_name}/{seed}/{index}", case=case, inputs=inputs)


def _usual(rng: np.random.Generator) -> tuple[AttentionCase, float, float]:
    keys = int(rng.choice([32, 128, 384]))
    queries = min(keys // 2, 48)
    spec = AttentionSpec(
        q_num_heads=4,
        kv_num_heads=2,
        head_dim=int(rng.choice([32, 64, 128])),
        is_causal=True,
        has_past=True,
        mask=MaskKind.BOOL if rng.random() < 0.5 else MaskKind.NONE,
    )
    case = AttentionCase(spec=spec, q_seq_len=queries, past_seq_len=keys - queries)
    return case, float(rng.choice([0.3, 1.0, 4.0])), 10.0 ** rng.uniform(-3, 2)


def _wide(rng: np.random.Generator) -> tuple[AttentionCase, float, float]:
    keys = int(np.exp(rng.uniform(np.log(7), np.log(1500))))
    queries = int(rng.integers(1, min(keys, 48) + 1))
    causal = bool(rng.random() < 0.5)
    spec = AttentionSpec(
        q_num_heads=2,
        kv_num_heads=1,
        head_dim=int(rng.choice([16, 40, 64, 128, 256])),
        is_causal=causal,
        has_past=causal,
        mask=MaskKind.BOOL if not causal and rng.random() < 0.5 else MaskKind.NONE,
    )
    past = keys - queries if causal else 0
    case = AttentionCase(spec=spec, q_seq_len=queries, kv_seq_len=keys - past, past_seq_len=past)
    return case, float(np.exp(rng.uniform(np.log(0.05), np.log(30)))), 10.0 ** rng.uniform(-3, 3)


def _tiny(rng: np.random.Generator) -> tuple[AttentionCase, float, float]:
    head_dim = int(rng.choice([1, 2, 8]))
    spec = AttentionSpec(
        q_num_heads=2,
        kv_num_heads=1,
        head_dim=head_dim,
        v_head_dim={1: 1, 2: 8, 8: 8}[head_dim],
        mask=MaskKind.BOOL if rng.random() < 0.3 else MaskKind.NONE,
    )
    case = AttentionCase(spec=spec, q_seq_len=int(rng.integers(1, 6)), kv_seq_len=int(rng.integers(1, 8)))
    return case, float(rng.choice([0.3, 1.0, 4.0])), 10.0 ** rng.uniform(-2, 2)


def _inputs(
    case: AttentionCase, rng: np.random.Generator, *, spread: float, value_scale: float, spoil: bool
) -> AttentionInputs:
    sigma = np.sqrt(spread)
    shapes = case.input_shapes()
    offset = rng.standard_normal((1, case.spec.kv_num_heads, 1, case.spec.v_head_dim))
    offset *= rng.choice([0.0, 0.5, 5.0, 50.0]) if spoil else 0.5
    heavy, outlier = (rng.random(2) < 0.25) & spoil
    channel = rng.integers(case.spec.head_dim)
    arrays: dict[str, Array] = {}
    for name, shape in shapes.items():
        if name == "attn_mask":
            arrays[name] = np.arange(shape[3]) < np.full(shape, shape[3] - min(3, shape[3] - 1))
        elif name.endswith("value"):
            arrays[name] = ((rng.standard_normal(shape) + offset) * value_scale).astype(np.float32)
        else:
            drawn = (
                rng.standard_t(3, shape) / np.sqrt(3) if heavy and name.endswith("key") else rng.standard_normal(shape)
            )
            drawn = drawn * sigma
            if outlier:
                drawn[..., channel] *= 5.0
            arrays[name] = drawn.astype(np.float32)
    return AttentionInputs(**arrays)


def _shared(rng: np.random.Generator, *, name: str) -> Drawn:
    """Rows that share errors: many query heads read few keys, and queries or keys are similar."""
    kv_heads = int(rng.choice([1, 1, 2]))
    keys = int(np.exp(rng.uniform(0.0, np.log(65.0))))
    queries = int(np.exp(rng.uniform(0.0, np.log(65.0))))
    causal = bool(queries <= keys and rng.random() < 0.4)
    width = int(rng.choice([4, 16, 64]))
    spec = AttentionSpec(
        q_num_heads=kv_heads * int(rng.choice([1, 4, 8])),
        kv_num_heads=kv_heads,
        head_dim=width,
        v_head_dim=int(rng.choice([width, width, 5])),
        is_causal=causal,
        has_past=causal,
        mask=MaskKind.BOOL if not causal and rng.random() < 0.3 else MaskKind.NONE,
    )
    past = keys - queries if causal else 0
    case = AttentionCase(spec=spec, q_seq_len=queries, kv_seq_len=keys - past, past_seq_len=past)
    value_scale = 10.0 ** rng.uniform(-2, 2)
    plain = _inputs(case, rng, spread=float(rng.choice([0.3, 1.0, 4.0])), value_scale=value_scale, spoil=False)
    kind = str(rng.choice(_SHARED_KINDS))
    arrays = plain.named()
    key = arrays["key"] if past == 0 else np.concatenate([arrays["past_key"], arrays["key"]], axis=2)
    query, key = _alike(kind, arrays["query"].astype(np.float64), key.astype(np.float64), spec, rng)
    arrays |= {"query": _plain(query), "key": _plain(key[:, :, past:])}
    if past:
        arrays["past_key"] = _plain(key[:, :, :past])
    if rng.random() < 0.3:
        arrays |= {
            part: np.copysign(np.float32(value_scale), arrays[part]) for part in arrays if part.endswith("value")
        }
    return Drawn(name=f"{name} ({kind})", case=case, inputs=AttentionInputs(**arrays))


def _alike(
    kind: str, query: Float64, key: Float64, spec: AttentionSpec, rng: np.random.Generator
) -> tuple[Float64, Float64]:
    """Make queries, keys or both similar, in one of `_SHARED_KINDS`."""
    few = int(rng.choice([1, 2, 4]))
    chosen = rng.integers(few, size=query.shape[2])
    match kind:
        case "repeated":
            heads = slice(0, 1) if rng.random() < 0.5 else slice(None)
            return np.broadcast_to(query[:, heads, chosen % query.shape[2]], query.shape), key
        case "nearly-repeated":
            near = query[:, :, chosen % query.shape[2]]
            return near * (1.0 + 10.0 ** rng.uniform(-6, -2) * rng.standard_normal(query.shape)), key
        case "peaked":
            served = np.arange(spec.q_num_heads) // spec.heads_per_kv
            like = key[:, served][:, :, chosen % key.shape[2]]
            logit = rng.choice([6.0, 8.0, 12.0]) * rng.uniform(0.7, 1.3, (*query.shape[:3], 1))
            return query + logit / spec.scale_value * like / np.square(like).sum(-1, keepdims=True), key
        case "low-rank":
            basis = rng.standard_normal((few, query.shape[3]))
            spread = np.sqrt(query.shape[3] / few)
            return (query[..., :few] * spread) @ basis / few, (key[..., :few] * spread) @ basis / spread
        case _:
            direction = rng.choice([-1.0, 1.0], query.shape[3]) * rng.uniform(0.5, 1.5, query.shape[3])
            logit = float(rng.choice([20.0, 130.0, 900.0])) * rng.choice([-1.0, 1.0], (1, key.shape[1], 1, 1))
            level = rng.uniform(1.0, 1.0 + rng.choice([0.02, 0.1]), (*key.shape[:3], 1))
            size = np.sqrt(np.abs(logit) / (spec.scale_value * (direction @ direction)))
            lengths = rng.uniform(0.85, 1.15, (*query.shape[:3], 1))
            across = rng.standard_normal(query.shape)
            across -= (across @ direction / (direction @ direction))[..., None] * direction
            size = np.abs(size).max()
            return size * (lengths * direction + 0.5 * across), size * np.sign(logit) * level * direction


def _plain(array: Float64) -> Array:
    return np.ascontiguousarray(array, dtype=np.float32)
