"""What an engine is: the one file that makes a runtime, for judging and for timing, in any environment.

An engine is a class of an entry point in the group `sdpa_onnx.runtimes`. Its file is Python 3.9 and needs numpy and
its runtime only; importing the file loads numpy at most. No base class is needed.
`sdpa_onnx.runtimes.engine_runtime` makes a `Runtime` of it.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypedDict

from sdpa_onnx.runtimes.worker.arrays import Bits

__all__ = ["Engine", "EngineNode", "Opened", "engine_place", "is_engine"]

_OURS = "sdpa_onnx.runtimes.worker."


class EngineNode(TypedDict):
    """One node of a model, of any level, as plain values.

    "domain" is "" for the standard operators. "types" has the element type of each input, numpy's word, or None where
    it is absent or not known; "inputs" whether each is given; "attributes" plain values by name, without graphs and
    tensors.
    """

    domain: str
    op_type: str
    types: list[str | None]
    inputs: list[bool]
    attributes: Mapping[str, Any]


class Opened(Protocol):
    """A model that an engine has loaded.

    Instead of `run` it may have `prepare(feeds)`, which gives an object with `first_run() -> call` (runs once, and
    gives what runs again and copies nothing) and `outputs()`. Optional too: `device` ("cpu" or "cuda"), `warnings`
    (sentences), `wait()`, `visit(turns, calls)`, `profile(calls)`, `process` (number of the one that it runs in, if not
    ours), and `ran(folder, *, with_graph)`, whose dictionary may have

    - "assigned": provider -> operator -> nodes, with "provider" for ONNX Runtime's, the one that was requested,
    - "optimised": file of the graph after optimisation, or None,
    - "threads", where they can be read, "precision", "warnings".
    """

    def run(self, feeds: dict[str, Bits]) -> dict[str, Any]:
        """Run once.

        Args:
            feeds: By input name, an array and the number of its type in ONNX; bfloat16 comes as uint16 and 16.

        Returns:
            Fresh arrays by output name, or such pairs.
        """
        ...

    def close(self) -> None:
        """Free it."""
        ...


class Engine(Protocol):
    """A runtime in one file.

    What the runtime raises is passed on unchanged. What the engine itself refuses is an exception of a class named
    RefusalError with a predicate, such as "takes no bfloat16".

    Optional: `measures_time` (False: right and slow by design), `takes_options` (whether `settings` may be changed by a
    user), `checks_sizes` (False: it does not look whether sizes fit each other), `install` (the command that installs
    it), `unavailable() -> str | None` (the package is there, and a device is missing), `settings(threads=, purpose=,
    optimise=)` (all that it is configured with, plain values), `refuses(nodes) -> str | None` (a predicate too, asked
    before loading), `precision(dtype, purpose)` (a key of `core.attention.precision.PRECISIONS`), `explain(text)`
    (the sentence in an error text, no final stop), `failing_node(text)` (the node that an error text names).
    """

    name: str

    def version(self) -> str:
        """Package and version, e.g. "tract 0.23.9".

        Raises:
            ImportError: If the package is missing.
        """
        ...

    def open(self, job: dict[str, Any]) -> Opened:
        """Load a model.

        Args:
            job: "model" (path or bytes), "folder" (of its data files, or None), "threads", "settings", "purpose"
                ("agreement" or "timing"), "optimise", "inputs" and "outputs" (names, in order), "defaults" (inputs that
                may be left out), "report" (a folder for the graph after optimisation, or None), "copies" (inputs that
                calls take in turn).
        """
        ...


def is_engine(found: object) -> bool:
    """Whether an entry point's object is an engine, not a `Runtime`."""
    return hasattr(found, "open")


def engine_place(engine: Engine) -> str:
    """Where a worker finds it, in any environment: "module:class" of the folder `worker`, or "FILE.py:class"."""
    kind = type(engine)
    if kind.__module__.startswith(_OURS):
        return f"{kind.__module__.removeprefix(_OURS)}:{kind.__qualname__}"
    return f"{Path(inspect.getfile(kind)).resolve()}:{kind.__qualname__}"
