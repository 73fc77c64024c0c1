"""Python environments made on the spot: bare, or with packages of ours linked in, or with a faulty runtime."""

import venv
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

FAULTY = Path(__file__).with_name("faulty_onnxruntime.py")
# What numpy and onnxruntime need to be imported.
NUMPY = ("numpy", "numpy.libs")
ONNXRUNTIME = ("onnxruntime",)
# Where a worker finds the engines.
ORT = "engines.onnxruntime:OrtCpu"
ORT_CUDA = "engines.ort_cuda:OrtCuda"
OPENVINO = "engines.openvino:OpenVino"


def environment(folder: Path, packages: Iterable[str], *, faulty: bool = False) -> Path:
    """Make an environment that has these packages of ours and no other; its interpreter."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = Path(str(find_spec("numpy").submodule_search_locations[0])).parent  # type: ignore[union-attr,index]
    for package in packages:
        if (ours / package).exists():
            (site / package).symlink_to(ours / package)
    if faulty:
        (site / "onnxruntime.py").symlink_to(FAULTY)
    return folder / "bin" / "python"
