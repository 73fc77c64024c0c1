"""What sessions share: they hold one object of their library until they are closed."""

from types import TracebackType
from typing import Generic, Self, TypeVar

from sdpa_onnx.errors import SessionError

__all__ = ["LiveSession"]

Live = TypeVar("Live")


class LiveSession(Generic[Live]):
    """The part of a session that opens and closes; see `runtimes.base.Session`.

    Args:
        runtime: Its name, for the error.
        live: The library's own session, model or module.
    """

    def __init__(self, runtime: str, live: Live) -> None:
        self._runtime = runtime
        self._live: Live | None = live

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live = None

    @property
    def live(self) -> Live:
        """The library's own object.

        Raises:
            SessionError: If this session is closed.
        """
        if self._live is None:
            raise SessionError(f"The {self._runtime} session is closed.", hint="Use it inside its with block.")
        return self._live
