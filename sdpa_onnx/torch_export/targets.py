"""Resolve a TARGET to a module and its sample inputs: one of the three uses, or a class in a package or file.

Exports nothing. The command line handles the bare target `sdpa`.
"""

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sdpa_onnx.errors import ExportError, PlanError, SdpaOnnxError
from sdpa_onnx.torch_export.bound_inputs import SampleInputs
from sdpa_onnx.torch_export.modules import founding_use
from sdpa_onnx.torch_export.source_line import exception_line
from sdpa_onnx.torch_export.target_text import TARGET_MODULE, TargetText, check_target

__all__ = ["ExportTarget", "find_module", "resolve_target", "sample_of"]

_SEED = 0
# Token ids of a random sample stay below this, so that they are valid in any embedding table.
_HIGHEST_ID = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTarget:
    """A module ready to be exported.

    Args:
        name: The user's text, without the arguments.
        module: The instance.
        sample_inputs: A tuple, or a dict by parameter name.
    """

    name: str
    module: nn.Module
    sample_inputs: SampleInputs

    def converted(self, dtype: str) -> "ExportTarget":
        """The target with floating-point weights and sample inputs converted to another element type."""
        element: torch.dtype = getattr(torch, dtype)
        return replace(self, module=self.module.to(element), sample_inputs=_converted(self.sample_inputs, element))


def resolve_target(text: str, *, shapes: Mapping[str, tuple[Sequence[int], str]] | None = None) -> ExportTarget:
    """Build the module that a TARGET names.

    Args:
        text: "encoder-self", "decoder-self", "encoder-decoder", "package.module:Class",
            "file.py:Class", each class with optional literal arguments
            "file.py:Class(512, heads=8)". Instead of a class, it may be a function
            that returns a module, or a module.
        shapes: (shape, dtype) by parameter name; replaces the `sample_inputs`
            of the instance, its class or its file.

    Raises:
        PlanError: If there is no such target, or no sample inputs.
        ExportError: If the file or the constructor raises, or the result is not a module.
    """
    name, module, sample = find_module(text, with_sample=not shapes)
    sample = _drawn(shapes) if shapes else sample
    if sample is None:
        raise PlanError(
            f"{name} has no sample inputs.",
            hint="Define sample_inputs (a tuple or dict of tensors, or a function that returns one) "
            "in the class or the file, or give --shape, such as --shape x=2x16x96.",
        )
    return ExportTarget(name=name, module=module, sample_inputs=sample)


def find_module(text: str, *, with_sample: bool = True) -> tuple[str, nn.Module, SampleInputs | None]:
    """The module of a target with its name and its `sample_inputs`, which are None if it has none or needs none.

    Raises:
        PlanError, ExportError: As `resolve_target`, which also demands sample inputs.
    """
    parsed = check_target(text)
    if parsed is None:
        return text, *founding_use(text)
    name = f"{parsed.where}:{parsed.name}"
    with torch.random.fork_rng(devices=[]), _importable_from(parsed):
        torch.manual_seed(_SEED)
        namespace = _imported(parsed)
        built = _built(parsed, _found(parsed, namespace))
        sample = sample_of(built, name=name) if with_sample else None
        if sample is None and with_sample:
            sample = sample_of(namespace, name=name)
    return name, built, sample


@contextmanager
def _importable_from(parsed: TargetText) -> Iterator[None]:
    """Let the target import modules of its folder, as `python FILE` and `python -m` do."""
    folder = str(Path(parsed.where).resolve().parent) if parsed.is_file else str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _imported(parsed: TargetText) -> ModuleType:
    try:
        return _file_module(parsed) if parsed.is_file else importlib.import_module(parsed.where)
    except SdpaOnnxError:
        raise
    except ModuleNotFoundError as error:
        if not parsed.is_file and error.name and f"{parsed.where}.".startswith(f"{error.name}."):
            raise PlanError(f"There is no module '{parsed.where}'.", hint="Install it, or name a file.") from error
        raise ExportError(f"{parsed.where} cannot be imported: {error}{exception_line(error)}.") from error
    except Exception as error:  # whatever the user's file raises
        raise ExportError(
            f"{parsed.where} cannot be imported: {type(error).__name__}: {error}{exception_line(error)}."
        ) from error


def _file_module(parsed: TargetText) -> ModuleType:
    path = Path(parsed.where)
    # dataclasses and torch.export look the module up by name, so it is registered.
    name = TARGET_MODULE + _as_identifier(path.stem)
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise PlanError(f"{parsed.where} is not a Python file.")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def _as_identifier(stem: str) -> str:
    """The name of a file in ASCII letters, digits and underscores: a dot would make it a package."""
    return re.sub(r"\W", lambda found: f"_{ord(found[0]):x}_", stem, flags=re.ASCII)


def _found(parsed: TargetText, namespace: ModuleType) -> object:
    if not hasattr(namespace, parsed.name):
        near = difflib.get_close_matches(parsed.name, [name for name in vars(namespace) if name[0] != "_"], n=1)
        raise PlanError(f"{parsed.where} has no '{parsed.name}'.", hint=f"Did you mean '{near[0]}'?" if near else None)
    return getattr(namespace, parsed.name)


def _built(parsed: TargetText, found: object) -> nn.Module:
    """Call the class or function, unless it is a module already."""
    if isinstance(found, nn.Module):
        if parsed.has_call:
            raise PlanError(f"'{parsed.name}' in {parsed.where} is a module instance and has no arguments.")
        return found
    if inspect.isclass(found) and not issubclass(found, nn.Module):
        raise ExportError(f"'{parsed.name}' in {parsed.where} is not a torch.nn.Module.")
    if not callable(found):
        raise ExportError(
            f"'{parsed.name}' in {parsed.where} is of type {type(found).__name__}, not a torch.nn.Module."
        )
    try:
        built = found(*parsed.args, **parsed.kwargs)
    except Exception as error:  # whatever the constructor raises
        raise ExportError(
            f"{parsed.name} of {parsed.where} cannot be built: {type(error).__name__}: {error}{exception_line(error)}.",
            hint=f"Write arguments after the name: {parsed.name}(512, heads=8)."
            if not parsed.has_call and _needs_arguments(found)
            else None,
        ) from error
    if not isinstance(built, nn.Module):
        raise ExportError(
            f"{parsed.name} of {parsed.where} returns a value of type {type(built).__name__}, not a torch.nn.Module."
        )
    return built


def _needs_arguments(found: Callable[..., object]) -> bool:
    """Whether a call without arguments is impossible."""
    try:
        inspect.signature(found).bind()
    except TypeError:
        return True
    except ValueError:  # a builtin without a signature
        return False
    return False


def sample_of(holder: object, *, name: str) -> SampleInputs | None:
    """The `sample_inputs` of a module or a file, called if they are callable; None if it has none.

    Raises:
        PlanError: If they are neither tensors nor a tuple or dict of them; names the module.
        ExportError: If they raise.
    """
    declared = getattr(holder, "sample_inputs", None)
    if declared is None:
        return None
    try:
        value = declared() if callable(declared) else declared
    except Exception as error:  # whatever the user's function raises
        raise ExportError(
            f"sample_inputs of {name} raised {type(error).__name__}: {error}{exception_line(error)}."
        ) from error
    if isinstance(value, Tensor):
        return (value,)
    if not isinstance(value, tuple | list | dict):
        raise PlanError(
            f"sample_inputs of {name} is of type {type(value).__name__}.",
            hint="Give a tuple or dict of tensors.",
        )
    return value if isinstance(value, dict) else tuple(value)


def _converted(value: Any, element: torch.dtype) -> Any:
    match value:
        case Tensor():
            return value.to(element) if value.is_floating_point() else value
        case dict():
            return {name: _converted(one, element) for name, one in value.items()}
        case list() | tuple():
            return type(value)(_converted(one, element) for one in value)
        case _:
            return value


def _drawn(shapes: Mapping[str, tuple[Sequence[int], str]]) -> dict[str, object]:
    """Draw a random sample: N(0, 1) floats, small integer ids, random booleans."""
    generator = torch.Generator().manual_seed(_SEED)
    return {name: _drawn_tensor(name, shape, dtype, generator) for name, (shape, dtype) in shapes.items()}


def _drawn_tensor(name: str, shape: Sequence[int], dtype: str, generator: torch.Generator) -> Tensor:
    element = getattr(torch, dtype, None)
    if not isinstance(element, torch.dtype):
        raise PlanError(
            f"The input '{name}' has the unknown dtype '{dtype}'.",
            hint="Known: float64, float32, float16, bfloat16, int64, int32, bool.",
        )
    if any(size < 0 for size in shape):
        raise PlanError(f"The input '{name}' has the shape {tuple(shape)}; sizes must be 0 or more.")
    if element.is_floating_point:
        return torch.randn(tuple(shape), generator=generator).to(element)
    return torch.randint(0, _HIGHEST_ID, tuple(shape), generator=generator).to(element)
