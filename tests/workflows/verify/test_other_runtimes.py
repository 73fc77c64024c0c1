"""An error of one runtime is recorded; the others are still judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pytest
from numpy.typing import NDArray

import sdpa_onnx.workflows.verify.verify_file as verify_file_module
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Outcome
from sdpa_onnx.errors import RuntimeUnavailableError, SessionError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Supported, Unsupported
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.verify.verify_file import verify_file
from tests.workflows.oracle_runtime import OracleRuntime

Array = NDArray[np.generic]


@dataclass
class _Broken(OracleRuntime):
    """A runtime whose adapter fails at one place."""

    name: str = "broken"
    where: str = "run"
    error: Callable[[], Exception] = lambda: ValueError("no such key")

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        if self.where == "supports":
            raise self.error()
        return OracleRuntime.supports(self, model)

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        if self.where == "load":
            raise self.error()
        return _BrokenSession(OracleRuntime.load(self, model, options), self)  # type: ignore[return-value]


class _BrokenSession:
    def __init__(self, real: Session, runtime: _Broken) -> None:
        self._real, self._runtime = real, runtime

    def __enter__(self) -> Self:
        self._real.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._real.__exit__(None, None, None)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if self._runtime.where == "run":
            raise self._runtime.error()
        return self._real.run(inputs)

    def ran(self) -> RanReport:
        if self._runtime.where == "ran":
            raise self._runtime.error()
        return self._real.ran()


_ERRORS: dict[str, Callable[[], Exception]] = {
    "refuses": lambda: SessionError("broken refuses the node 'attention'."),
    "unexpected": lambda: ValueError("no such key"),
    "no text": KeyError,
    "missing": lambda: RuntimeUnavailableError("broken lost its device."),
}


@pytest.fixture
def model() -> OnnxModel:
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)
    return load_model(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32))


def _records(
    monkeypatch: pytest.MonkeyPatch, model: OnnxModel, runtimes: list[Runtime], check: CheckOptions
) -> list[AgreementRecord | ExportRecord]:
    by_name = {runtime.name: runtime for runtime in runtimes}
    monkeypatch.setattr(verify_file_module, "get_runtime", by_name.__getitem__)
    return list(verify_file(model, list(by_name), check, target="t"))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [False, True], ids=["drawn", "given"])
@pytest.mark.parametrize("where", ["supports", "load", "run", "ran"])
@pytest.mark.parametrize("what", _ERRORS)
def test_the_other_runtime_is_judged(
    monkeypatch: pytest.MonkeyPatch, model: OnnxModel, what: str, where: str, *, given: bool
) -> None:
    """Whatever one runtime raises, and wherever, the next one is judged and the error is a record."""
    if where == "supports" and what in ("refuses", "missing"):
        pytest.skip("`supports` answers and refuses nothing")
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((1, 2, 5, 4)).astype(np.float32) for name in model.input_names}
    check = CheckOptions(sizes={}, spreads=(1.0,), inputs=inputs if given else None)
    broken = _Broken(where=where, error=_ERRORS[what])
    found = _records(monkeypatch, model, [broken, OracleRuntime()], check)
    of_broken = [one for one in found if isinstance(one, AgreementRecord) and one.runtime == "broken"]
    of_other = [one for one in found if isinstance(one, AgreementRecord) and one.runtime != "broken"]
    assert of_other
    assert {one.outcome for one in of_other} == {Outcome.OK}
    assert {one.outcome for one in of_broken} <= {Outcome.FAILED, Outcome.UNSUPPORTED}
    assert all(one.reason for one in of_broken)
    assert of_broken
    if what == "unexpected":
        assert "raised an error that is no refusal: ValueError: no such key" in of_broken[0].reason


def test_arrays_that_every_runtime_refuses_are_an_error(monkeypatch: pytest.MonkeyPatch, model: OnnxModel) -> None:
    """If no runtime takes the given arrays, they are probably wrong: the first refusal is raised."""
    refuse = [_Broken(name=name, error=_ERRORS["refuses"]) for name in ("one", "two")]
    inputs = {name: np.zeros((1, 2, 5, 4), np.float32) for name in model.input_names}
    with pytest.raises(SessionError, match="refuses the node"):
        _records(monkeypatch, model, refuse, CheckOptions(sizes={}, inputs=inputs))
