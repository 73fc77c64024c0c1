"""A softmax without a guard gives NaN in a row without a visible key, and every check of such a file agrees on that."""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgspec
import onnx
import onnx.parser
import pytest
import torch
from torch import nn

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Record, Subject
from sdpa_onnx.graph.model import SITES_KEY, OnnxModel, load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.export.export_target import export_and_prove, in_form
from sdpa_onnx.workflows.reduce.reduced_case import NothingFails
from sdpa_onnx.workflows.reduce.text import nothing_sentence
from sdpa_onnx.workflows.verify.plant_faults import prove_sites
from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

_QUIET = VerifyExtras(axes=False)
_CHECK = CheckOptions(sizes={}, spreads=(1.0,))
_GIVES_NAN = "A row in which no key is visible gives NaN"
_SCALE = 8**-0.5
Tensors = tuple[torch.Tensor, ...]

_HEAD = """
<ir_version: 9, opset_import: ["" : 18]>
hand (float[batch,4,q,8] query, float[batch,4,kv,8] key, float[batch,4,kv,8] value, {mask} mask)
  => (float[batch,4,q,8] output)
<float scale = {{0.35355339}}, float zero = {{0.0}}, float hidden = {{{hidden}}}>
{{
  kt = Transpose<perm = [0, 1, 3, 2]>(key)
  product = MatMul(query, kt)
  scaled = Mul(product, scale)
"""
_FLOAT, _BOOL = "float[batch,1,q,kv]", "bool[batch,1,q,kv]"
_ADD = "  scores = Add(scaled, mask)\n  weights = Softmax<axis = -1>(scores)\n"
_FILL = "  scores = Where(mask, scaled, hidden)\n  weights = Softmax<axis = -1>(scores)\n"
_PLAIN = "  output = MatMul(weights, value)\n}\n"
_GUARD = "  lost = IsNaN(weights)\n  kept = Where(lost, zero, weights)\n  output = MatMul(kept, value)\n}\n"
_GUARDED_AFTER = (
    "  product2 = MatMul(weights, value)\n  lost = IsNaN(product2)\n  output = Where(lost, zero, product2)\n}\n"
)


def _graph(softmax: str, rest: str, *, mask: str = _BOOL, hidden: str = "-1.0") -> OnnxModel:
    proto = onnx.parser.parse_model(_HEAD.format(mask=mask, hidden=hidden) + softmax + rest)
    if hidden == "-1.0":  # the parser knows no infinity
        (tensor,) = [one for one in proto.graph.initializer if one.name == "hidden"]
        tensor.CopyFrom(onnx.helper.make_tensor("hidden", onnx.TensorProto.FLOAT, [1], [-math.inf]))
    return with_lifted_sites(load_model(proto)).model


class Added(nn.Module):
    """A mask of numbers that is added."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * _SCALE + mask, -1) @ v


class Filled(nn.Module):
    """-inf where a flag hides."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hide: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-2, -1) * _SCALE).masked_fill(hide, -math.inf)
        return torch.softmax(scores, -1) @ v


class Batched(nn.Module):
    """Samples and heads in one axis."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        keys = k.flatten(0, 1).transpose(1, 2)
        scores = torch.baddbmm(mask.flatten(0, 1), q.flatten(0, 1), keys, alpha=_SCALE)
        return torch.bmm(torch.softmax(scores, -1), v.flatten(0, 1)).view(q.shape)


class Heads(nn.Module):
    """torch's own attention with padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.attention(x, x, x, key_padding_mask=pad)[0]
        return output


class Projected(nn.Module):
    """Attention by hand between two projections."""

    is_guarded: ClassVar = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.into(x).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1) * _SCALE).masked_fill(pad[:, None, None, :], -math.inf)
        weights = torch.softmax(scores, -1)
        if self.is_guarded:
            weights = torch.where(torch.isnan(weights), 0.0, weights)
        output: torch.Tensor = self.out((weights @ v).transpose(1, 2).flatten(-2))
        return output


class Guarded(Projected):
    """The same, guarded."""

    is_guarded: ClassVar = True


def _sample(module: type[nn.Module]) -> Tensors:
    rng = torch.Generator().manual_seed(0)
    if not issubclass(module, Added | Filled | Batched):
        pad = torch.rand(2, 6, generator=rng) < 0.3
        pad[:, 0] = False
        return torch.randn(2, 6, 32, generator=rng), pad
    heads = tuple(torch.randn(2, 4, length, 8, generator=rng) for length in (5, 7, 7))
    mask = torch.randn(2, 4 if module is Batched else 1, 5, 7, generator=rng)
    return (*heads, mask < -1.0 if module is Filled else mask)


@pytest.fixture(scope="module")
def projected() -> OnnxModel:
    return in_form(export_module(Projected().eval(), _sample(Projected), opset=18), None)


def _agreements(records: Iterable[Record]) -> list[AgreementRecord]:
    return [one for one in records if isinstance(one, AgreementRecord)]


def _warned(records: Iterable[Record]) -> bool:
    return any(text.startswith(_GIVES_NAN) for one in records for text in one.warnings)


def _probed(model: OnnxModel) -> CheckOptions:
    return replace(_CHECK, sizes=dict.fromkeys(model.facts.axes, 7), probes=True)


@pytest.mark.parametrize(
    ("softmax", "rest", "mask", "hidden", "gives_nan"),
    [
        (_ADD, _PLAIN, _FLOAT, "-1.0", True),
        (_FILL, _PLAIN, _BOOL, "-1.0", True),
        (_ADD, _GUARD, _FLOAT, "-1.0", False),
        (_FILL, _GUARD, _BOOL, "-1.0", False),
        (_FILL, _PLAIN, _BOOL, "-1e9", False),
    ],
)
def test_every_check_agrees(softmax: str, rest: str, mask: str, hidden: str, gives_nan: bool) -> None:
    """With a guard or a finite mask there is no NaN and no warning; without, NaN is right and a warning says so."""
    model = _graph(softmax, rest, mask=mask, hidden=hidden)
    found = check_model(model, get_runtime("ort-cpu"), _probed(model), target="", expectations=ExpectationCache())
    assert {one.outcome for one in found} == {Outcome.OK}
    assert _warned(found) is gives_nan


def test_guard_after_the_product() -> None:
    """What a guard behind the product replaces is NaN at the output of the attention; the file is right."""
    model = _graph(_ADD, _GUARDED_AFTER, mask=_FLOAT)
    found = check_model(model, get_runtime("ort-cpu"), _probed(model), target="", expectations=ExpectationCache())
    assert {one.outcome for one in found} == {Outcome.OK}


@pytest.mark.slow
def test_planted_faults_are_found() -> None:
    """Every fault that the graph leaves to be one is found in an attention without a guard too."""
    model = _graph(_ADD, _PLAIN, mask=_FLOAT)
    found = list(prove_sites(model, get_runtime("ort-cpu"), _probed(model), [], target="hand"))
    assert len(found) > 10
    assert [one.fault for one in found if one.outcome is Outcome.FAILED] == []
    assert not [one for one in found if one.fault.startswith("masked-row")]


def test_faults_are_planted_inside(projected: OnnxModel) -> None:
    """In an attention that cannot be cut out, faults are planted in its output inside the model, and found."""
    model = with_lifted_sites(projected).model
    (site,) = model.sites
    check = replace(_CHECK, sizes=dict.fromkeys(model.facts.axes, 5))
    found = list(prove_sites(model, get_runtime("ort-cpu"), check, [], target="hand"))
    assert {one.site for one in found} == {site.name}
    caught = {one.fault for one in found if one.outcome is Outcome.OK}
    assert caught >= {
        "scale-missing",
        "mask-ignored",
        "mask-swapped",
        "last-key-missing",
        "keys-reversed",
        "output-zero",
    }
    assert all(one.caught_by for one in found if one.outcome is Outcome.OK)
    assert all(one.reason for one in found if one.outcome is not Outcome.OK)


def test_metadata_states_nothing(tmp_path: Path) -> None:
    """The fact is read off the graph, so metadata neither holds nor hides it."""
    model = _graph(_ADD, _PLAIN, mask=_FLOAT)
    (site,) = model.sites
    model.ir.metadata_props[SITES_KEY] = msgspec.json.encode(model.sites).decode()
    assert "guard" not in model.ir.metadata_props[SITES_KEY]
    again = load_model(model.save(tmp_path / "noted.onnx"))
    assert again.facts.without_row_guard == {site.name}


@pytest.mark.parametrize(
    ("module", "outcome"), [(Projected, Outcome.OK), (Guarded, Outcome.DISAGREES)], ids=["own", "guarded"]
)
def test_against_a_module(projected: OnnxModel, module: type[nn.Module], outcome: Outcome) -> None:
    """A file that lost the guard of its module is wrong; that of a module without one is right."""
    model = with_lifted_sites(replace(projected, source=module().eval(), bind=None)).model
    records = _agreements(verify_file(model, ["ort-cpu"], _CHECK, target="hand", extras=_QUIET))
    assert all(one.outcome is Outcome.OK for one in records if one.subject is Subject.ATTENTION)
    ends = [one for one in records if one.subject is Subject.OUTPUT]
    assert max((one.outcome for one in ends), key=[Outcome.OK, Outcome.DISAGREES].index) is outcome
    assert outcome is Outcome.OK or all(
        one.inputs.startswith("hidden row") for one in ends if one.outcome is Outcome.DISAGREES
    )


@pytest.mark.slow
@pytest.mark.parametrize("module", [Added, Filled, Batched, Heads, Projected, Guarded])
def test_export_and_verify_agree(module: type[nn.Module], tmp_path: Path) -> None:
    """The export of each module is right, and so is its file, by itself and compared with the module."""
    path = tmp_path / "hand.onnx"
    made = export_and_prove(
        lambda: in_form(export_module(module().eval(), _sample(module), opset=18), None), target="hand", path=path
    )
    assert made.is_right
    for model in (load_model(path), replace(load_model(path), source=module().eval())):
        records = _agreements(verify_file(model, ["ort-cpu"], _CHECK, target="hand", extras=_QUIET))
        assert {one.outcome for one in records} == {Outcome.OK}
        assert _warned(records) is (module is not Guarded)


def test_reduce_names_replaced_nodes() -> None:
    """Attention that is read by replacing nodes can be read, and the sentence does not deny it."""
    found = NothingFails(tried=("q 5",), is_read=False, alone=("q 5",), replaced="2 Einsum")
    assert nothing_sentence(found, "ort-cpu") == (
        "Nothing fails on ort-cpu: no attention is judged as one, because reading it replaces nodes (2 Einsum); every "
        "node by itself is right at q 5."
    )
