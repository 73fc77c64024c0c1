"""What a shell completes: names of runtimes, forms, suites and targets. Paths are left to the shell.

Called only while a shell completes, so that `--help` imports none of what these functions import.
"""

__all__ = ["complete_form", "complete_runtime", "complete_runtime_or_all", "complete_suite", "complete_target"]


def complete_runtime() -> list[str]:
    """Names of the registered runtimes, installed or not."""
    from sdpa_onnx.runtimes.base import runtime_names

    return list(runtime_names())


def complete_runtime_or_all() -> list[str]:
    """Values of a repeatable `--runtime`."""
    return [*complete_runtime(), "all"]


def complete_form() -> list[str]:
    """Values of `bench --form`; the `--form` of other commands is a choice, which typer completes."""
    from sdpa_onnx.core.attention.forms import Form

    return ["as-is", *Form]


def complete_suite() -> list[str]:
    """Names of the built-in suites."""
    from sdpa_onnx.sweep.suite import built_in_suites

    return list(built_in_suites())


def complete_target() -> list[str]:
    """Targets that have a name: bare attention, our modules and the layers of the catalog."""
    from sdpa_onnx.catalog import entry_names
    from sdpa_onnx.sweep.suite import BARE_TARGET
    from sdpa_onnx.torch_export.target_text import FOUNDING_USES

    return [BARE_TARGET, *FOUNDING_USES, *entry_names()]
