"""Load each graph once for a series of runs, where the runs of one session are not judged against those of another.

A fault of state, a run that is wrong only after others, is looked for in new sessions: `verify/session_state.py`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, Supported, Unsupported
from sdpa_onnx.workflows.check.run_context import runs_module

__all__ = ["KeptSessions", "kept_sessions"]

_Key = tuple[int, str, LoadOptions]


class KeptSessions:
    """A runtime whose sessions stay open after their with block, and are given out again for the same graph.

    Args:
        real: The runtime that loads.
        stack: Closes the sessions.
    """

    def __init__(self, real: Runtime, stack: contextlib.ExitStack) -> None:
        self.real = real
        self.name = real.name
        self.measures_time = real.measures_time
        self._stack = stack
        # The model is kept too, so that the id of its graph is not reused.
        self._open: dict[_Key, tuple[OnnxModel, Session]] = {}

    def available(self) -> Supported | Unsupported:
        """The answer of the runtime."""
        return self.real.available()

    def version(self) -> str:
        """The version of the runtime."""
        return self.real.version()

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """The answer of the runtime; no model is loaded."""
        return self.real.supports(model)

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        """The session of that graph; loaded at the first call.

        Raises:
            SessionError: If the runtime refuses the model.
        """
        options = replace(options, reports=True)
        # What ran is reported for the element type of the attentions, which follows from the sites.
        key = (id(model.ir), model.facts.attention_dtype.value, options)
        if key not in self._open:
            self._open[key] = model, self._stack.enter_context(self.real.load(model, options))
        return _Borrowed(self._open[key][1])


class _Borrowed:
    """An open session that its with block does not close; see `runtimes.base.Session`."""

    def __init__(self, real: Session) -> None:
        self.run, self.bind, self.ran = real.run, real.bind, real.ran

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The session stays open."""


@contextlib.contextmanager
def kept_sessions(real: Runtime) -> Iterator[Runtime]:
    """A runtime that loads each graph once, until the block ends; one that runs the module itself stays as it is.

    Args:
        real: The runtime that loads.
    """
    if runs_module(real.name):  # it loads nothing, and which module it runs does not follow from the graph
        yield real
        return
    with contextlib.ExitStack() as stack:
        yield KeptSessions(real, stack)
