"""Why an import failed: the package is missing, or it is there and broken. Imports nothing itself."""

import importlib.metadata
import importlib.util
import sys

__all__ = ["import_failure", "is_missing"]

# Modules that are no package of somebody else: ours, and the script that was started.
_NOT_INSTALLED = ("sdpa_onnx", "__main__")


def is_missing(error: ImportError) -> bool:
    """Whether a package is not installed; False if one is there and cannot be imported."""
    name = _package(error)
    if not isinstance(error, ModuleNotFoundError) or not name:
        return False
    if error.name == name:  # the package itself, not a module of it
        return True
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError:  # raised by the search itself
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
    distribution = importlib.metadata.packages_distributions().get(name, [name])[0]  # vl_convert: vl-convert-python
    again = f"Install it again: pip install --force-reinstall {distribution}."
    return f"The package '{name}' is installed and cannot be imported: {cause}. {again}"


def _package(error: ImportError) -> str:
    """The package that an import names; else the one whose own code raised the error while it was imported."""
    if error.name:
        return error.name.partition(".")[0]
    trace, package = error.__traceback__, ""
    while trace is not None:  # the innermost, since a package may import another one that is broken
        frame, trace = trace.tb_frame, trace.tb_next
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if frame.f_code.co_name == "<module>" and name not in _NOT_INSTALLED and name not in sys.stdlib_module_names:
            package = name
    return package
