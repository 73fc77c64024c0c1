"""Text that is safe to send: what identifies a machine or its user is removed."""

import re

__all__ = ["without_paths"]

# An absolute path, a file URL, a Windows path; not the path of a web address, and not a fraction.
_PATHS = re.compile(
    r"file://\S+|(?<![\w.:/<>-])(?:[A-Za-z]:\\|\\\\|~/|/(?=[^\s/'\"():,;<>|]+/))[^\s'\"():,;<>|]*",
)


def without_paths(text: str) -> str:
    """Replace control characters; of a path only the file name remains.

    Example:
        >>> without_paths("/srv/someone/src/attention.cc:12 was false, see https://example.org/a/b")
        'attention.cc:12 was false, see https://example.org/a/b'
    """
    printable = "".join(one if one.isprintable() or one in "\n\t" else "?" for one in text)
    return _PATHS.sub(lambda found: _file_name(found[0]), printable)


def _file_name(path: str) -> str:
    name = re.split(r"[\\/]", path.rstrip(".\\/"))[-1]
    return name if re.search(r"\w\.\w", name) else "(path)"
