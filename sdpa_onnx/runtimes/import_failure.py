"""Why an import failed: the package is missing, or it is there and broken. Imports nothing itself."""

import importlib.util

__all__ = ["import_failure", "is_missing"]


def is_missing(error: ImportError) -> bool:
    """Whether a package is not installed; False if one is there and cannot be imported."""
    name = _package(error)
    if not isinstance(error, ModuleNotFoundError) or not name:
        return False
    if error.name == name:  # the package itself, not a module of it
        return True
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError:  # whatever looks for it says so itself
        return True
    except (ImportError, ValueError):  # ValueError: a module without a specification
        return False


def import_failure(error: ImportError) -> str:
    """What failed, and what to do, in two sentences.

    Args:
        error: Raised by an import.
    """
    name = _package(error)
    if is_missing(error):
        return f"The package '{name}' is missing. Install it: pip install {name}."
    cause = " ".join(str(error).split()).rstrip(".")
    if not name:
        return f"An installed package cannot be imported: {cause}. Install it again."
    again = f"Install it again: pip install --force-reinstall {name}."
    return f"The package '{name}' is installed and cannot be imported: {cause}. {again}"


def _package(error: ImportError) -> str:
    return (error.name or "").partition(".")[0]
