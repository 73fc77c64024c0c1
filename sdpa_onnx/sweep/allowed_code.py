"""Refuse code that a suite names and the user did not: exporting a module imports it, which runs it.

A target that is typed on the command line is consent; one that is read from a file is not. Imports no target.
"""

import shlex
from collections.abc import Collection
from pathlib import Path

from sdpa_onnx.errors import PlanError
from sdpa_onnx.sweep.suite import Suite, cases
from sdpa_onnx.torch_export.target_text import FOUNDING_USES, check_target

__all__ = ["check_code_is_allowed"]


def check_code_is_allowed(suite: Suite, allowed: Collection[str], *, source: str) -> None:
    """Refuse a suite that names a module or file which is not allowed; our own layers need no permission.

    Args:
        suite: What was read.
        allowed: Modules and files as `--allow-code` names them.
        source: Where the suite was read from.

    Raises:
        PlanError: With the option that allows it, or if a target cannot be read.
    """
    places = {_place(one) for one in allowed}
    targets = dict.fromkeys(case.target for case in cases(suite) if case.spec is None)
    for target in targets:
        parsed = None if target in FOUNDING_USES else check_target(target)
        if parsed is not None and _place(parsed.where) not in places:
            option = f"--allow-code {shlex.quote(parsed.where)}"
            raise PlanError(
                f"Suite {source} names '{target}', and to export it is to run the code of '{parsed.where}'.",
                hint=f"If you trust that code, add {option} (in Python allow_code=[{parsed.where!r}]).",
            )


def _place(where: str) -> str:
    """A module's name, or the absolute path of a file: a suite and an option may write it differently."""
    is_file = where.endswith(".py") or "/" in where or "\\" in where
    return str(Path(where).resolve()) if is_file else where
