"""The exception tree: every failure that a caller can act on.

Disagreement, "unsupported" and doubt are values on a record, never exceptions.
"""

__all__ = [
    "CaseError",
    "ExportError",
    "FolderError",
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
    """Base of all our errors: one clear sentence, and a hint on what to do.

    Args:
        message: What is wrong and where, one sentence.
        hint: What the user can do about it, one sentence, or None.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} {self.hint}" if self.hint else message


class CaseError(SdpaOnnxError, ValueError):
    """A case that cannot exist (heads that do not divide, head_dim < 1)."""


class FolderError(SdpaOnnxError):
    """A run folder that cannot be made or written (read-only, disk full)."""


class ModelError(SdpaOnnxError):
    """A file or object that is no usable ONNX model."""


class ExportError(SdpaOnnxError):
    """torch or onnx refused the export; the cause is kept."""


class RuntimeNotFoundError(SdpaOnnxError):
    """An unknown runtime name; the message offers the nearest known one."""


class RuntimeUnavailableError(SdpaOnnxError):
    """A runtime whose package is missing or broken; names the extra to install."""


class SessionError(SdpaOnnxError):
    """Loading or running a model failed; the cause is kept."""


class NoAnswerError(SessionError):
    """A runtime gave no answer in the time that it had."""


class RecordFormatError(SdpaOnnxError):
    """A stored record that cannot be read: file, line, field."""


class PlanError(SdpaOnnxError):
    """A suite, target or option that is wrong: key, value, what is allowed."""
