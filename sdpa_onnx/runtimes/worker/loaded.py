"""A model that an engine has loaded, with what an engine may leave out: bound runs, a profile, a report.

`sdpa_onnx.runtimes.engine` states what an engine is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import BFLOAT16, ONNX_TYPES, Bits
from .pipe import RefusalError
from .profile import UNKNOWN, Profile

__all__ = ["Loaded", "PreparedRun"]


class PreparedRun:
    """Inputs for a runtime that has no memory to bind."""

    def __init__(self, run: Callable[[dict[str, Bits]], dict[str, Any]], feeds: dict[str, Bits]) -> None:
        self._run = run
        self._feeds = feeds
        self._outputs: dict[str, Any] = {}

    def first_run(self) -> Callable[[], object]:
        """Run once; give the call that runs again."""
        self._call()
        return self._call

    def outputs(self) -> dict[str, Bits]:
        """What the last run gave, by output name."""
        return {name: _bits(given) for name, given in self._outputs.items()}

    def _call(self) -> None:
        self._outputs = self._run(self._feeds)


class Loaded:
    """What an engine opened.

    Args:
        engine: It.
        job: What it loads; see `sdpa_onnx.runtimes.engine.Engine.open`.
    """

    def __init__(self, engine: Any, job: dict[str, Any]) -> None:
        self._engine = engine
        self.opened: Any = engine.open(job)
        self._first: Any = None
        self.device: str = getattr(self.opened, "device", "cpu")
        # Where the memory is: an engine may run in a process that it started.
        self.process: int | str = getattr(self.opened, "process", "self")
        # Of the engine's own way to time calls: on a device, or in another process.
        self.visit = getattr(self.opened, "visit", None)

    @property
    def warnings(self) -> list[str]:
        """What makes the times other than they seem, whole sentences."""
        return list(getattr(self.opened, "warnings", []))

    def version(self) -> str:
        """Of the package, e.g. "onnxruntime 1.32.0"."""
        return str(self._engine.version())

    def prepare(self, feeds: dict[str, Bits]) -> Any:
        """Bind inputs; nothing runs. See `PreparedRun`."""
        own = getattr(self.opened, "prepare", None)
        prepared = own(feeds) if own is not None else PreparedRun(self.opened.run, feeds)
        self._first = self._first or prepared
        return prepared

    def outputs(self) -> dict[str, Bits]:
        """What the inputs that were bound first gave, by output name."""
        if self._first is None:
            raise RefusalError("was not run yet")
        found: dict[str, Bits] = self._first.outputs()
        return found

    def wait(self) -> None:
        """Until what was called is done."""
        own = getattr(self.opened, "wait", None)
        if own is not None:
            own()

    def profile(self, calls: int) -> Profile:
        """The runtime's own profile; see `profile.read_profile`."""
        own = getattr(self.opened, "profile", None)
        found: Profile = own(calls) if own is not None else UNKNOWN
        return found

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        """What the runtime reports of what ran; empty where it reports nothing."""
        own = getattr(self.opened, "ran", None)
        found: dict[str, Any] = own(folder, with_graph=with_graph) if own is not None else {}
        return found

    def close(self) -> None:
        """Free it."""
        opened, self.opened, self._first, self.visit = self.opened, None, None, None
        if opened is not None:
            opened.close()


def _bits(given: Any) -> Bits:
    if isinstance(given, tuple):
        return given
    array = np.asarray(given)
    number = ONNX_TYPES[array.dtype.name]
    return (array.view(np.uint16) if number == BFLOAT16 else array), number
