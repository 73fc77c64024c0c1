"""One exported file in every form on onnxruntime: each attention by the oracle, the end by the file's own float64.

The source runs once and in float64 once; every form is judged against that. Three sets of sizes, none of them traced,
one with padding at the end, one with padding at the start, where causality leaves rows without any visible key.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.nodes_apart import nodes_apart
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, get_runtime
from sdpa_onnx.workflows.check.lifted_model import LiftedModel, lift
from sdpa_onnx.workflows.check.output_check import OutputRun, judge_output, relative_yardstick
from sdpa_onnx.workflows.choose_form.form_strategy import FixedForm
from sdpa_onnx.workflows.choose_form.runtime_strategies import RuntimeForm
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.locate.float64_graph import Float64Graph

Array = NDArray[np.generic]
Arrays = Mapping[str, Array]

RUNTIME = "ort-cpu"
# No axis has one size twice, 1 is among them, and the first set is long enough for several blocks.
SIZES = (
    {"batch": 2, "length": 67, "target": 33},
    {"batch": 1, "length": 8, "target": 1},
    {"batch": 3, "length": 5, "target": 4},
)
# The rotary operator that torch writes from opset 23 on has tables of one sample, which onnxruntime refuses for more.
_ONE_SAMPLE = {("llama", "dynamo-23")}
# Its 1500 frames take ten seconds a sample in float64.
_SLOW = {"whisper"}
_BAD = (Verdict.WRONG, Verdict.SUSPICIOUS)
# Ids below any vocabulary here.
_IDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one file in one form.

    Args:
        form: The form.
        opset: Of the result.
        converted: Attentions written in the form.
        refused: Why the others were not, by their nodes.
        axes: Names and axes of the result's inputs.
        attentions: Judgement of every attention of the result at all sizes.
        ends: Judgement of its end at all sizes.
        failure: Why nothing could be judged; "" if it could.
    """

    form: Form
    opset: int = 0
    converted: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    axes: Sequence[str] = ()
    attentions: Sequence[Agreement] = ()
    ends: Sequence[Agreement] = ()
    failure: str = ""

    @property
    def verdicts(self) -> Counter[str]:
        return Counter(agreement.verdict.value for agreement in self.attentions)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(self.refused.values())

    @property
    def wrong_attentions(self) -> list[str]:
        return [one.diagnosis for one in self.attentions if one.verdict in _BAD]

    @property
    def wrong(self) -> list[str]:
        """What spoke against it."""
        return [*self.wrong_attentions, *(one.diagnosis for one in self.ends if one.verdict in _BAD)]


def sizes_for(name: str, exporter: str) -> list[dict[str, int]]:
    """The sets of sizes that an export is run at."""
    sizes = [dict(one) for one in SIZES]
    if (name, exporter) in _ONE_SAMPLE or name in _SLOW:
        sizes = [one | {"batch": 1} for one in sizes]
    return sizes[:2] if name in _SLOW else sizes


class Source:
    """An exported file, searched, run, and run in float64.

    Args:
        path: The file.
        sizes: Sets of sizes by axis.
    """

    def __init__(self, path: Path, sizes: Sequence[Mapping[str, int]] = SIZES) -> None:
        self.model = load_model(path)
        self.lifted: LiftedModel = lift(self.model)
        self.feeds = [_feeds(self.model, chosen, seed) for seed, chosen in enumerate(sizes)]
        truth = Float64Graph(self.lifted.model)
        truth.stand_in = partial(_on_the_runtime, self.lifted.model)
        made = {value.name for node in self.lifted.model.ir.graph for value in node.outputs}
        steps = [name for name in truth.steps if name in made]
        self.runs = list(run(self.lifted.model, self.feeds, steps))
        names = self.model.output_names
        self.truths = [
            truth.run(feeds, names, given={name: values[name] for name in steps}).values
            for feeds, values in zip(self.feeds, self.runs, strict=True)
        ]

    def judged(self) -> list[Agreement]:
        """Every attention of the source at all sizes."""
        return [one for values in self.runs for one in judge_sites(self.lifted.model, values)]

    def row(self, form: Form, asked: Runtime | None = None) -> Row:
        """Convert and judge.

        Args:
            form: The form.
            asked: Is probed about how the form has to be written for it; None = it is written plainly.
        """
        writing = FixedForm(form=form) if asked is None else RuntimeForm(runtime=asked, form=form)
        try:
            converted = convert_model(self.model, writing, again=True)
        except SdpaOnnxError as error:
            return Row(form=form, failure=str(error))
        result = converted.model
        row = Row(
            form=form,
            opset=result.opset,
            converted=len(converted.converted),
            refused=converted.refused,
            axes=axes_of(result),
        )
        if not converted.converted:
            return row
        try:
            runs = list(run(result, self.feeds))
        except SdpaOnnxError as error:
            return replace(row, failure=str(error))
        attentions = [one for values in runs for one in judge_sites(result, values)]
        return replace(row, attentions=attentions, ends=self._ends(runs))

    @property
    def axes(self) -> list[str]:
        return axes_of(self.model)

    def _ends(self, runs: Sequence[Arrays]) -> list[Agreement]:
        name = self.model.output_names[0]
        triples = zip(self.truths, self.runs, runs, strict=True)
        ends = [OutputRun(truth=truth[name], source=own[name], actual=values[name]) for truth, own, values in triples]
        yardstick = relative_yardstick(ends)
        return [judge_output(end, yardstick) for end in ends]


def run(model: OnnxModel, feeds: Sequence[Arrays], more: Sequence[str] = ()) -> Iterator[dict[str, Array]]:
    """Everything that a site names, more values by name, and the outputs, for each set of inputs."""
    constants = model.constants()
    names = [name for site in model.sites for name in (*site.inputs.values(), site.output)]
    tapped = model.tapped([*dict.fromkeys([*names, *more])])
    with get_runtime(RUNTIME).load(tapped, LoadOptions(threads=1)) as session:
        for one in feeds:
            yield {**constants, **one, **session.run(one)}


def axes_of(model: OnnxModel) -> list[str]:
    """Names and axes of the inputs and outputs."""
    return [f"{value.name} {value.shape}" for value in (*model.ir.graph.inputs, *model.ir.graph.outputs)]


def judge_sites(model: OnnxModel, values: Arrays) -> Iterator[Agreement]:
    """Each attention against the oracle on what entered it."""
    for site in model.sites:
        inputs = AttentionInputs(**{field: values[name] for field, name in site.inputs.items()})
        output = values[site.output]
        yield judge(expect(site.spec, inputs, precision=find_precision(output.dtype.name)), output)


def _feeds(model: OnnxModel, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.ir.graph.inputs:
        shape = [size if isinstance(size, int) else sizes[str(size.value)] for size in value.shape or ()]
        name = value.name or ""
        if name.endswith("ids"):
            feeds[name] = generator.integers(1, _IDS, shape)
        elif name == "attention_mask":
            feeds[name] = _padding(*shape)
        else:
            feeds[name] = generator.standard_normal(shape, dtype=np.float32)
    return feeds


def _padding(batch: int, length: int) -> Array:
    """Padding at the end of the first sample, and at the start of the third."""
    mask = np.ones((batch, length), np.int64)
    mask[0, -3:] = 0
    mask[2:, :2] = 0
    return mask


def _on_the_runtime(model: OnnxModel, node: ir.Node, reads: Arrays) -> dict[str, Array]:
    """Outputs of a node that ONNX's evaluator cannot give, such as GatherElements on many rows."""
    known = {value.name: value for value in node.inputs if value is not None}
    own = {
        name: array.astype(np.float32)
        if array.dtype == np.float64 and known[name].dtype == ir.DataType.FLOAT
        else array
        for name, array in reads.items()
    }
    constants = {name: array for name, array in own.items() if name in model.ir.graph.initializers}
    apart = nodes_apart(model.ir, [node], own, constants)
    with get_runtime(RUNTIME).load(apart.model, LoadOptions(threads=1)) as session:
        return session.run(apart.feeds)
