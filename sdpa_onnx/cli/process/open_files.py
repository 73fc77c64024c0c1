"""How many files a command may hold open: as many as the system lets it.

A model may keep every tensor in a file of its own, and each is held open while the model is used.
"""

import contextlib

__all__ = ["allow_open_files"]


def allow_open_files() -> None:
    """Raise the limit of open files to the one that the system sets, where there is such a limit.

    Shells start programs with 1,024 or 256, for the sake of old programs that wait with select(2); neither Python's
    subprocess nor ours does.

    Source: getrlimit(2): a process may raise its soft limit up to the hard limit.
    """
    try:
        import resource  # not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS refuses its own "unlimited"
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
