"""Define the exceptions: one class for each kind of failure that a caller can handle.

Disagreement, "unsupported" and warnings are values in a record, never exceptions.
"""

__all__ = [
    "CaseError",
    "ExportError",
    "FolderError",
    "MissingPackageError",
    "ModelError",
    "NoAnswerError",
    "PlanError",
    "RecordFormatError",
    "RuntimeNotFoundError",
    "RuntimeUnavailableError",
    "SdpaOnnxError",
    "SessionError",
]


class SdpaOnnxError(Exception):
    """Base class of all errors: one sentence, and a hint on what to do.

    Args:
        message: What failed and where, one sentence.
        hint: What the user can do about it, one sentence, or None.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} {self.hint}" if self.hint else message


class CaseError(SdpaOnnxError, ValueError):
    """An invalid case (head counts that do not divide, head_dim < 1)."""


class FolderError(SdpaOnnxError):
    """A run folder that cannot be created or written (read-only, disk full)."""


class MissingPackageError(SdpaOnnxError, ModuleNotFoundError):
    """An optional package that is not installed; the message has the command that installs it."""


class ModelError(SdpaOnnxError):
    """A file or object that is not a usable ONNX model."""


class ExportError(SdpaOnnxError):
    """A failed export by torch or onnx; the cause is kept."""


class RuntimeNotFoundError(SdpaOnnxError):
    """An unknown runtime name; the message suggests the nearest known one."""


class RuntimeUnavailableError(SdpaOnnxError):
    """A runtime whose package is missing or broken; names the extra to install."""


class SessionError(SdpaOnnxError):
    """A model that failed to load or run; the cause is kept."""


class NoAnswerError(SessionError):
    """A runtime gave no answer in the time that it had."""


class RecordFormatError(SdpaOnnxError):
    """A stored record that cannot be read: file, line, field."""


class PlanError(SdpaOnnxError):
    """An invalid suite, target or option: names key, value and allowed values."""
