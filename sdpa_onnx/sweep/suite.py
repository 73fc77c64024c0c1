"""A suite: parse TOML into types, with one sentence for each mistake in the file.

Describes what to run; runs nothing.
"""

import difflib
import itertools
import math
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec

from sdpa_onnx.catalog import entry_names, find_entry
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.inputs import LADDER
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, ScaleRule
from sdpa_onnx.errors import CaseError, PlanError

__all__ = ["BARE_TARGET", "CaseKey", "SaturationGrid", "Suite", "TimingBudget", "built_in_suites", "load_suite"]

# The target of bare attention: inputs Q, K, V and masks, output Y.
BARE_TARGET = "sdpa"


# Every upper limit is beyond any use. It rejects a slip of the keyboard and inf before anything is built.
Count = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
Length = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Past = Annotated[int, msgspec.Meta(ge=0, le=2**24)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Sigma = Annotated[float, msgspec.Meta(ge=1e-3, le=1e3)]
Opset = Annotated[int, msgspec.Meta(ge=18, le=25)]
Blocks = Annotated[int, msgspec.Meta(ge=2, le=65_536)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class TimingBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to time one comparison.

    A sweep has many comparisons, so each has one look at the end, or one more before it, at an alpha of 1 % together.

    Args:
        launches: Processes of every arm.
        first_launches: After so many, a comparison ends in which every arm has its verdict. None = no such look.
        blocks: Greatest number of blocks of a launch; least_blocks: measured even beyond the budget.
        budget_seconds: Time for the comparison; the number of blocks is chosen to fit it.
        visit_seconds: Target duration of one visit.
        warm_up_seconds: Greatest warm-up time per arm and launch, or eight calls if they take longer.
    """

    launches: Count = 3
    first_launches: Blocks | None = None
    blocks: Blocks = 40
    least_blocks: Blocks = 13  # fewer were not simulated: docs/decisions/0006
    budget_seconds: Positive = 3.0
    visit_seconds: Positive = 0.01
    warm_up_seconds: Positive = 0.5


class SuiteBase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The point around which factors are varied; None = the default of the case."""

    batch_size: Count = 1
    q_seq_len: Length = 512
    kv_seq_len: Length | None = None
    past_seq_len: Past = 0
    q_num_heads: Count = 8
    kv_num_heads: Count | None = None
    head_dim: Count = 64
    v_head_dim: Count | None = None
    is_causal: bool = False
    dtype: Dtype = Dtype.FLOAT32


class SuiteGrid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One grid: every combination of the lists; factors that are left out keep their base value.

    `forms` are further arms of every case: graph forms at the newest opset of the suite, in addition to the default
    forms of its opsets. They are judged on the runtimes on which they are timed.
    """

    targets: tuple[str, ...]
    forms: tuple[Form, ...] = ()
    batch_size: tuple[Count, ...] = ()
    q_seq_len: tuple[Length, ...] = ()
    kv_seq_len: tuple[Length, ...] = ()
    past_seq_len: tuple[Past, ...] = ()
    q_num_heads: tuple[Count, ...] = ()
    kv_num_heads: tuple[Count, ...] = ()
    head_dim: tuple[Count, ...] = ()
    v_head_dim: tuple[Count, ...] = ()
    is_causal: tuple[bool, ...] = ()
    dtype: tuple[Dtype, ...] = ()


class SaturationGrid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cells of `workflows.saturation.measure`: every combination of width, length and rule.

    Args:
        head_dim, kv_seq_len, scale_rule: The combined values.
        sigma: Standard deviation of the components of query and key.
        rows: Queries per draw; draws: independent draws of the keys.
        module: Also measure torch.nn.MultiheadAttention with its initial weights.
    """

    head_dim: tuple[Annotated[int, msgspec.Meta(ge=1, le=65536)], ...]
    kv_seq_len: tuple[Annotated[int, msgspec.Meta(ge=2, le=65536)], ...]
    scale_rule: tuple[ScaleRule, ...] = (ScaleRule.NONE, ScaleRule.INVERSE_SQRT)
    sigma: Sigma = 1.0
    rows: Count = 128
    draws: Annotated[int, msgspec.Meta(ge=4, le=65_536)] = 8
    module: bool = True


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of a run.

    Args:
        name: The name in reports.
        opsets: Exported opsets; below 23 decomposed, from 23 the Attention operator.
        agreement: Judged runtimes; timing: timed runtimes. "all" is each one that is there.
        baseline: Runtime whose time is 1.
        spreads: Logit spreads of the judged inputs.
        probes: Run the structural probes too, once per graph.
        reference_seq_len: Greatest length at which runtimes for agreement only, such as onnx-reference, judge a case; a
            longer one is judged at a fraction of its lengths. None = at its own lengths.
        seed: Seed of weights and inputs.
        threads: Threads inside one operator, the same for every arm.
        saturation: What to measure of the effect of the scale; None = nothing.
    """

    name: str
    opsets: tuple[Opset, ...] = (18, 23)
    agreement: tuple[str, ...] = ("ort-cpu",)
    timing: tuple[str, ...] = ()
    baseline: str = "torch"
    spreads: tuple[Positive, ...] = LADDER
    probes: bool = True
    reference_seq_len: Length | None = None
    seed: Seed = 0
    threads: Count = 1
    measure: TimingBudget = TimingBudget()
    base: SuiteBase = SuiteBase()
    saturation: SaturationGrid | None = None
    vary: tuple[SuiteGrid, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseKey:
    """One case of a suite: a target, its spec if it is bare attention, its sizes.

    Args:
        target: `sdpa`, a named target such as `encoder-self`, or a user's class.
        spec: The spec of bare attention; None if the module decides.
        batch_size, q_seq_len, kv_seq_len, past_seq_len: Sizes.
        dtype: Element type.
        forms: Further graph forms.
    """

    target: str
    spec: AttentionSpec | None
    batch_size: int
    q_seq_len: int
    kv_seq_len: int
    past_seq_len: int = 0
    dtype: Dtype
    forms: tuple[Form, ...] = ()


# Greatest number of combinations of one grid: more would run for months.
_MOST_CASES = 100_000
# Greatest number of elements of one input of bare attention: 64 GiB of float32, beyond what a machine can judge.
_MOST_ELEMENTS = 2**34
_FACTORS = tuple(name for name in SuiteGrid.__struct_fields__ if name not in ("targets", "forms"))
# A module or a layer of the catalog has its own figures; only its sizes can vary.
_SIZES = ("batch_size", "q_seq_len", "kv_seq_len", "past_seq_len")


def built_in_suites() -> dict[str, Path]:
    """Suites in the package, by name."""
    folder = Path(str(files("sdpa_onnx.sweep") / "suites"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_suite(name: str) -> Suite:
    """Read a suite by name or from a TOML file.

    Raises:
        PlanError: If there is none, or it is wrong: the text has the key, the value and what is allowed.
    """
    known = built_in_suites()
    path = known.get(name) or Path(name)
    if name not in known and path.suffix != ".toml":
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"Did you mean '{near[0]}'?" if near else f"Known suites: {', '.join(known)}; or name a .toml file."
        raise PlanError(f"There is no suite '{name}'.", hint=hint)
    try:
        text = path.read_bytes().decode("utf-8")
        suite = msgspec.toml.decode(text, type=Suite)
    except OSError as error:
        raise PlanError(f"Cannot read suite {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"Suite {path} is not a text file.") from error
    except msgspec.ValidationError as error:
        raise PlanError(f"Suite {path}: {_sentence(str(error))}") from error
    except msgspec.DecodeError as error:
        raise PlanError(f"Suite {path} is not TOML: {error}.") from error
    _check(suite, str(path))
    return suite


def cases(suite: Suite) -> list[CaseKey]:
    """Every case of a suite once, in the order of the file.

    Raises:
        PlanError: If a combination is not a possible attention.
    """
    found: dict[CaseKey, dict[Form, None]] = {}
    for vary in suite.vary:
        for target in vary.targets:
            for chosen in _combinations(_base_of(target, suite.base, vary), vary):
                # A case in two grids is one case with the forms of both.
                found.setdefault(_case(target, chosen), {}).update(dict.fromkeys(vary.forms))
    return [replace(case, forms=tuple(forms)) for case, forms in found.items()]


def _base_of(target: str, base: SuiteBase, vary: SuiteGrid) -> SuiteBase:
    """The base values of a target: a layer of the catalog has its own default sizes."""
    if target not in entry_names():
        return base
    entry = find_entry(target)
    follows = entry.is_self_attention and bool(vary.q_seq_len)
    return msgspec.structs.replace(
        base,
        batch_size=entry.batch_size,
        q_seq_len=entry.q_seq_len,
        kv_seq_len=None if follows else entry.kv_seq_len,
        past_seq_len=entry.past_seq_len,
    )


def _check_size(suite: Suite, where: str) -> None:
    """Count the combinations before they are built."""
    for number, vary in enumerate(suite.vary):
        combined = math.prod(len(getattr(vary, name)) or 1 for name in ("targets", *_FACTORS))
        if combined > _MOST_CASES:
            raise PlanError(
                f"Suite {where}: vary[{number}] has {combined} combinations; at most {_MOST_CASES} are allowed.",
                hint="Give fewer values, or split the suite.",
            )


def _combinations(base: SuiteBase, vary: SuiteGrid) -> Iterator[dict[str, object]]:
    values = [getattr(vary, name) or [getattr(base, name)] for name in _FACTORS]
    for combination in itertools.product(*values):
        yield dict(zip(_FACTORS, combination, strict=True))


def _case(target: str, chosen: dict[str, object]) -> CaseKey:
    factors = msgspec.convert(chosen, SuiteBase)
    spec = find_entry(target).spec if target in entry_names() else None
    try:
        if target == BARE_TARGET:
            spec = AttentionSpec(
                q_num_heads=factors.q_num_heads,
                kv_num_heads=_given(factors.kv_num_heads, factors.q_num_heads),
                head_dim=factors.head_dim,
                v_head_dim=_given(factors.v_head_dim, factors.head_dim),
                is_causal=factors.is_causal,
            )
            elements = factors.batch_size * spec.q_num_heads * max(factors.q_seq_len, factors.kv_seq_len or 0)
            elements *= max(spec.head_dim, spec.v_head_dim)
            if elements > _MOST_ELEMENTS:
                raise PlanError(
                    f"The suite has a case for '{target}' with {elements} elements in one tensor; at most "
                    f"{_MOST_ELEMENTS} are allowed.",
                    hint="Choose a smaller batch, length, width or number of heads.",
                )
    except CaseError as error:
        raise PlanError(f"The suite has an impossible case for '{target}': {error}") from error
    return CaseKey(
        target=target,
        spec=spec,
        batch_size=factors.batch_size,
        q_seq_len=factors.q_seq_len,
        kv_seq_len=_given(factors.kv_seq_len, factors.q_seq_len),
        past_seq_len=factors.past_seq_len,
        dtype=factors.dtype,
    )


def _given(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _check(suite: Suite, where: str) -> None:
    """Check what the types cannot check."""
    lists = {name: getattr(suite, name) for name in ("opsets", "agreement", "timing", "spreads")}
    lists |= {"vary": suite.vary, **{f"targets of vary[{n}]": vary.targets for n, vary in enumerate(suite.vary)}}
    if suite.saturation is not None:
        combined = ("head_dim", "kv_seq_len", "scale_rule")
        lists |= {f"{name} of saturation": getattr(suite.saturation, name) for name in combined}
    for name, values in lists.items():
        if not values and name != "timing":
            raise PlanError(f"Suite {where}: '{name}' is empty.", hint="Give at least one value.")
        if len(set(values)) < len(values):
            raise PlanError(f"Suite {where}: '{name}' has a value twice.", hint="Name each value once.")
    if suite.timing and not {suite.baseline, "all"} & set(suite.timing):
        raise PlanError(f"Suite {where}: baseline '{suite.baseline}' is not in 'timing'.", hint="Add it to 'timing'.")
    for vary in suite.vary:
        alien = [name for name in _FACTORS if name not in _SIZES and getattr(vary, name)]
        modules = [target for target in vary.targets if target != BARE_TARGET]
        if alien and modules:
            raise PlanError(
                f"Suite {where}: '{alien[0]}' cannot be varied for '{modules[0]}'; the module determines it."
            )
    _check_size(suite, where)
    cases(suite)


# Tables of a suite, by the name that msgspec puts into the path of an error.
_TABLES: dict[str, type[msgspec.Struct]] = {
    "vary": SuiteGrid,
    "measure": TimingBudget,
    "base": SuiteBase,
    "saturation": SaturationGrid,
}


def _sentence(error: str) -> str:
    """Turn the error text of msgspec into a sentence with the nearest allowed key."""
    unknown = re.match(r"Object contains unknown field `(?P<key>[^`]*)`(?: - at `\$(?P<where>[^`]*)`)?", error)
    if unknown is None:
        return _out_of_range(error) or error.replace(" - at `$.", " at `") + "."
    place = unknown["where"] or ""
    kind = _table(place)
    near = difflib.get_close_matches(unknown["key"], kind.__struct_fields__, n=1, cutoff=0.6)
    offer = f" Did you mean '{near[0]}'?" if near else f" Allowed: {', '.join(kind.__struct_fields__)}."
    at = f" in {place.lstrip('.')}" if place else ""
    return f"unknown key '{unknown['key']}'{at}.{offer}"


def _table(place: str) -> type[msgspec.Struct]:
    """The table that a path of msgspec leads into."""
    return next((kind for word, kind in _TABLES.items() if word in place), Suite)


def _out_of_range(error: str) -> str:
    """Name the field and its range if a number is outside; "" for any other error."""
    found = re.match(r"(?:Expected `(?:int|float)` [<>]=? \S+|Integer value out of range) - at `\$\.?(.*)`", error)
    if found is None:
        return ""
    place = found[1]
    field = place.rpartition(".")[2].partition("[")[0]
    limits = _limits(typing.get_type_hints(_table(place), include_extras=True)[field])
    if limits is None:
        return ""
    low = f"at least {limits.ge}" if limits.ge is not None else f"above {limits.gt:g}"
    return f"'{place}' must be {low} and at most {limits.le:{'d' if isinstance(limits.le, int) else 'g'}}."


def _limits(kind: object) -> msgspec.Meta | None:
    """The limits of a number within a type such as a tuple or a union."""
    parts = typing.get_args(kind)
    own = next((part for part in parts if isinstance(part, msgspec.Meta)), None)
    return own or next((found for part in parts if (found := _limits(part)) is not None), None)
