"""Generate `reproduce.py`, a script that runs a reduced case and compares its outputs with the float64 reference.

The script needs numpy, onnx and the package of one runtime. It does not import sdpa_onnx. One short
function per runtime differs; the rest is the same for all.
"""

from sdpa_onnx.errors import PlanError

__all__ = ["packages_of", "script"]

_ORT = '''\
def load(path, model):
    """Load the model in ONNX Runtime, on one provider only; return a function that runs it."""
    import ctypes

    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = @THREADS@
    session = ort.InferenceSession(str(path), options, providers=["@PROVIDER@"])
    session.disable_fallback()

    def run(feeds):
        values = {}
        for name, array in feeds.items():
            if array.dtype.name == "bfloat16":  # numpy has no bfloat16: pass the bits as uint16
                bits = array.view(np.uint16)
                values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
            else:
                values[name] = ort.OrtValue.ortvalue_from_numpy(array)
        names = [value.name for value in model.graph.output]
        outputs = {}
        for name, value in zip(names, session.run_with_ort_values(names, values)):
            if value.data_type() == "tensor(bfloat16)":
                count = int(np.prod(value.shape()))
                bits = (ctypes.c_uint16 * count).from_address(value.data_ptr())
                data = np.array(bits, dtype=np.uint16).reshape(value.shape())
                outputs[name] = (data.astype(np.uint32) << 16).view(np.float32)
            else:
                outputs[name] = value.numpy()
        return outputs

    return run
'''

_OPENVINO = '''\
def load(path, model):
    """Load the model in OpenVINO on the CPU, in float32 (its default may be bfloat16); return a function to run it."""
    import sys

    sys.modules["openvino_telemetry"] = None  # so that nothing is sent
    import openvino as ov

    core = ov.Core()
    hints = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": @THREADS@}
    compiled = core.compile_model(core.read_model(str(path)), "CPU", hints)

    def run(feeds):
        request = compiled.create_infer_request()
        order = [value.name for value in model.graph.input]
        for index, port in enumerate(compiled.inputs):
            name = next((name for name in port.get_names() if name in feeds), order[index])
            array = np.ascontiguousarray(feeds[name])
            bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
            request.set_input_tensor(index, ov.Tensor(bits, ov.Shape(array.shape), port.get_element_type()))
        request.infer()
        outputs = {}
        for index, value in enumerate(model.graph.output):
            tensor = request.get_output_tensor(index)
            data = np.array(tensor.data)
            if tensor.get_element_type() == ov.Type.bf16:
                data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            outputs[value.name] = data
        return outputs

    return run
'''

_REFERENCE = '''\
def load(path, model):
    """Load the model in ONNX's reference evaluator; return a function that runs it."""
    from onnx.reference import ReferenceEvaluator

    names = [value.name for value in model.graph.output]
    evaluator = ReferenceEvaluator(model)
    return lambda feeds: dict(zip(names, evaluator.run(None, feeds)))
'''

_OTHER = '''\
def load(path, model):
    """Load the model in @RUNTIME@; return a function that runs it.

    This script has no code for that runtime. Load the file `path` here, and return a function that runs it on
    arrays (by input name) and returns the outputs as numpy arrays by output name.
    """
    raise SystemExit("Write the code in load() that loads and runs a model in @RUNTIME@.")
'''

# Runtime -> its load() function, its execution provider, and the packages whose versions are recorded.
_RUNTIMES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "ort-cpu": (_ORT, "CPUExecutionProvider", ("onnxruntime",)),
    "ort-cuda": (_ORT, "CUDAExecutionProvider", ("onnxruntime-gpu", "onnxruntime")),
    "onnx-reference": (_REFERENCE, "", ()),
    "openvino": (_OPENVINO, "", ("openvino",)),
}

_MAIN = '''\
"""@HEADLINE@

Needs only numpy, onnx@PACKAGE@. Run: python reproduce.py
Prints the difference between each output and the @REFERENCE@. Exit code 1: wrong. 0: right.
"""

import pathlib
import sys

import numpy as np
import onnx

HERE = pathlib.Path(__file__).resolve().parent


@RUN@

def read_feeds(model, name):
    """Read inputs and cast each to the model's element type; bfloat16 is stored as float32, which is exact."""
    with np.load(HERE / name) as stored:
        arrays = {name: stored[name] for name in stored.files}
    feeds = {}
    for value in model.graph.input:
        if value.name in arrays:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            feeds[value.name] = np.ascontiguousarray(arrays[value.name].astype(dtype))
    return feeds


def compare(name, actual, oracle, bound):
    """Compare one output with the oracle and print the result; True if every element is inside the bound."""
    if actual.shape != oracle.shape:
        print(f"{name}: WRONG, shape {actual.shape}, expected {oracle.shape}")
        return False
    actual = actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(actual - oracle)
        same = (actual == oracle) | (np.isnan(actual) & np.isnan(oracle)) | np.isposinf(bound)
        inside = same | (error <= bound)
        excess = np.where(same, 0.0, np.where(np.isfinite(error), error - bound, np.inf))
    if not actual.size:
        print(f"{name}: right, it has no elements")
        return True
    worst = np.unravel_index(int(excess.argmax()), excess.shape)
    place = tuple(int(index) for index in worst)
    print(
        f"{name}: {'right' if inside.all() else 'WRONG'}, {int((~inside).sum())} of {actual.size} elements outside "
        f"the bound; at {place} got {actual[worst]:.9g}, expected {oracle[worst]:.9g}, "
        f"difference {error[worst]:.3g}, bound {bound[worst]:.3g}"
    )
    return bool(inside.all())


@COMPARE_ALL@

def main():
    """Run the model and compare its outputs; the exit code is 1 if one is wrong."""
    path = HERE / "model.onnx"
    model = onnx.load(str(path))
@MAIN@


if __name__ == "__main__":
    sys.exit(main())
'''


_COMPARE_ALL = '''\
def compare_all(model, outputs):
    """Compare every output that has an oracle; True if all are right."""
    with np.load(HERE / "expected.npz") as stored:
        expected = {name: stored[name] for name in stored.files}
    names = [value.name for value in model.graph.output if value.name + ":oracle" in expected]
    checks = [compare(name, outputs[name], expected[name + ":oracle"], expected[name + ":bound"]) for name in names]
    if not names:
        print("The model runs. There is no oracle for these operators, so the outputs are not compared.")
    return all(checks)
'''

_ONE_RUN = """\
    feeds = read_feeds(model, "inputs.npz")
    try:
        outputs = load(path, model)(feeds)
    except Exception as error:
        print(f"@RUNTIME@ fails: {type(error).__name__}: {error}")
        return 1
    return 0 if compare_all(model, outputs) else 1
"""

_SEVERAL_RUNS = """\
    feeds = read_feeds(model, "inputs.npz")
    try:
        print("In a fresh session:")
        compare_all(model, load(path, model)(feeds))
        run = load(path, model)
        for number in range(1, @EARLIER@ + 1):
            earlier = read_feeds(model, f"before_{number}.npz")
            sizes = ", ".join(f"{name} {array.shape}" for name, array in earlier.items())
            print(f"In a session after a run on {sizes}:" if number == @EARLIER@ else f"(after a run on {sizes})")
            run(earlier)
        outputs = run(feeds)
    except Exception as error:
        print(f"@RUNTIME@ fails: {type(error).__name__}: {error}")
        return 1
    return 0 if compare_all(model, outputs) else 1
"""


def script(runtime: str, headline: str, *, threads: int, earlier: int = 0) -> str:
    """Generate the script for one runtime.

    Args:
        runtime: Registered name. For a runtime without code here, the script has a place to add it.
        headline: The failure in one sentence; the first line of the script's docstring.
        threads: Threads inside one operator.
        earlier: Number of runs of the same session before the one that fails.

    Raises:
        PlanError: If the sentence would end the docstring or contains a backslash.
    """
    if '"""' in headline or "\\" in headline:
        raise PlanError("The description of the failure must not contain triple quotes or backslashes.")
    run, provider, packages = _RUNTIMES.get(runtime, (_OTHER, "", (runtime,)))
    filled = run.replace("@PROVIDER@", provider).replace("@THREADS@", str(threads))
    return (
        _MAIN.replace("@RUN@", filled)
        .replace("@COMPARE_ALL@", _COMPARE_ALL)
        .replace("@MAIN@", (_SEVERAL_RUNS if earlier else _ONE_RUN).rstrip("\n"))
        .replace("@EARLIER@", str(earlier))
        .replace("@REFERENCE@", "reference" if earlier else "float64 reference")
        .replace("@HEADLINE@", headline)
        .replace("@RUNTIME@", runtime)
        .replace("@PACKAGE@", "".join(f" and {name}" for name in packages[:1]))
    )


def packages_of(runtime: str) -> tuple[str, ...]:
    """Packages that the script for this runtime needs, in addition to numpy and onnx."""
    return _RUNTIMES.get(runtime, (_OTHER, "", ()))[2]
