"""The content of a TARGET as checksums: the source files that it needs, and its weights. Exports nothing.

A run that is resumed compares them: the cells of a target that changed run again.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from sdpa_onnx.torch_export.source_files import needed_files
from sdpa_onnx.torch_export.target_text import TargetText, check_target
from sdpa_onnx.torch_export.targets import ExportTarget

__all__ = ["target_content"]

# Installed packages have versions, which a run compares by themselves.
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def target_content(text: str, target: ExportTarget) -> dict[str, str]:
    """Checksums by name; empty for our own layers.

    Args:
        text: The user's text.
        target: What `resolve_target` returned for it in this process.

    Returns:
        sha256, hex: by path of each source file in the target's folder or package that was imported and that it
        needs, as the user would type it, and by "weights of TARGET".
    """
    parsed = check_target(text)
    if parsed is None:
        return {}
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(_sources(parsed))}
    return found | {f"weights of {text}": _weights_hash(target.module)}


def _sources(parsed: TargetText) -> Iterator[tuple[str, Path]]:
    """The files that the target needs, of those that were imported from its folder or its package."""
    candidates = {path: name for name, path in _imported(parsed)}
    start = Path(parsed.where).resolve() if parsed.is_file else _file_of(sys.modules.get(parsed.where))
    needed = candidates.keys() if start is None else needed_files(start, candidates)
    for path in needed:
        if path in candidates:
            yield candidates[path], path


def _file_of(module: object) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _imported(parsed: TargetText) -> Iterator[tuple[str, Path]]:
    """The imported files of the folder of a file, or of the package of a module."""
    typed = Path(parsed.where).parent
    folder = typed.resolve() if parsed.is_file else None
    package = parsed.where.partition(".")[0]
    for name, module in list(sys.modules.items()):
        path = _file_of(module)
        if path is None or path.suffix != ".py" or not path.is_file() or _INSTALLED & set(path.parts):
            continue
        if folder is not None and path.is_relative_to(folder):
            yield (typed / path.relative_to(folder)).as_posix(), path
        elif folder is None and name.partition(".")[0] == package:
            yield f"{name.replace('.', '/')}.py", path


def _weights_hash(module: nn.Module) -> str:
    content = hashlib.sha256()
    for name, value in module.state_dict().items():
        content.update(name.encode())
        if isinstance(value, Tensor) and value.layout is torch.strided and value.device.type == "cpu":
            content.update(f"{value.dtype} {tuple(value.shape)}".encode())
            content.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()
