"""The registry by entry point, with planted entry points."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from sdpa_onnx.errors import RuntimeNotFoundError, RuntimeUnavailableError
from sdpa_onnx.runtimes import base

CPU = "sdpa_onnx.runtimes.worker.engines.onnxruntime:OrtCpu"


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Entry points that the registry sees instead of the installed ones."""
    points = [EntryPoint(name, CPU, base.ENTRY_POINT_GROUP) for name in ("ort-cpu", "torch")]
    monkeypatch.setattr(base, "entry_points", lambda group: [point for point in points if point.group == group])
    return points


def test_a_known_name_gives_its_runtime(plant: list[EntryPoint]) -> None:
    """The entry point is loaded and called."""
    assert base.get_runtime("ort-cpu").name == "ort-cpu"
    assert base.runtime_names() == ("ort-cpu", "torch")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ort-cpp", "There is no runtime 'ort-cpp'. Did you mean 'ort-cpu'? `sdpa-onnx runtimes` lists them."),
        ("xyz", "There is no runtime 'xyz'. `sdpa-onnx runtimes` lists them."),
    ],
)
def test_an_unknown_name_offers_the_nearest(plant: list[EntryPoint], name: str, text: str) -> None:
    """A slip of the finger is answered with the name that was meant, if any is near."""
    with pytest.raises(RuntimeNotFoundError) as caught:
        base.get_runtime(name)
    assert str(caught.value) == text


def test_two_packages_of_one_name_are_an_error(plant: list[EntryPoint]) -> None:
    """Which of two would run must not depend on the order of installation."""
    plant.append(EntryPoint("torch", "other.package:Torch", base.ENTRY_POINT_GROUP))
    with pytest.raises(RuntimeUnavailableError) as caught:
        base.get_runtime("torch")
    assert str(caught.value) == (
        f"Runtime 'torch' is registered twice: other.package:Torch, {CPU}. Uninstall one of the packages."
    )


def test_one_entry_point_seen_twice_is_one(plant: list[EntryPoint]) -> None:
    """An editable install lists its entry points twice; that is no conflict."""
    plant.append(EntryPoint("ort-cpu", CPU, base.ENTRY_POINT_GROUP))
    assert base.get_runtime("ort-cpu").name == "ort-cpu"
    assert base.runtime_names() == ("ort-cpu", "torch")


def test_a_plug_in_that_cannot_be_imported_is_named(plant: list[EntryPoint]) -> None:
    """A broken package is an error of that runtime, with its reason."""
    plant.append(EntryPoint("broken", "no_such_package:Runtime", base.ENTRY_POINT_GROUP))
    with pytest.raises(RuntimeUnavailableError) as caught:
        base.get_runtime("broken")
    assert str(caught.value) == "Runtime 'broken' cannot be imported: No module named 'no_such_package'."


@pytest.mark.parametrize(
    "module",
    [
        *("base", "engine", "engine_runtime", "torch_baseline", "torch_ran", "onnx_reference", "ort_ran"),
        *("openvino_ran", "worker.engines.onnxruntime", "worker.engines.ort_cuda", "worker.engines.openvino"),
    ],
)
def test_importing_a_runtime_loads_no_framework(module: str) -> None:
    """Listing the runtimes must stay quick: torch and onnxruntime come in when a model is loaded."""
    code = (
        f"import sys, sdpa_onnx.runtimes.{module}\n"
        "print(sorted({'torch', 'onnxruntime', 'openvino', 'onnx.reference', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
