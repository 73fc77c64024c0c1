"""The runtimes that are available on this machine."""

from collections.abc import Iterator

from sdpa_onnx.core.records.records import Outcome, RuntimeRecord
from sdpa_onnx.errors import PlanError, RuntimeUnavailableError
from sdpa_onnx.runtimes.base import Unsupported, get_runtime, runtime_names

__all__ = ["pick_runtimes", "survey_runtimes"]


def survey_runtimes() -> Iterator[RuntimeRecord]:
    """One record per registered runtime, available or not."""
    for name in runtime_names():
        try:
            runtime = get_runtime(name)
            available = runtime.available()
        except RuntimeUnavailableError as error:
            yield RuntimeRecord(runtime=name, outcome=Outcome.SKIPPED, reason=str(error))
            continue
        except Exception as error:  # noqa: BLE001  # foreign code: the others are surveyed all the same
            reason = " ".join(f"it raised {type(error).__name__}: {error}".split()).rstrip(".")
            yield RuntimeRecord(runtime=name, outcome=Outcome.SKIPPED, reason=reason)
            continue
        if isinstance(available, Unsupported):
            yield RuntimeRecord(
                runtime=name,
                outcome=Outcome.SKIPPED,
                reason=available.reason,
                measures_time=runtime.measures_time,
            )
        else:
            yield RuntimeRecord(runtime=name, version=runtime.version(), measures_time=runtime.measures_time)


def pick_runtimes(names: list[str]) -> list[str]:
    """The requested runtimes; "all" means every one that is available.

    Raises:
        RuntimeNotFoundError: Unknown name.
        RuntimeUnavailableError: A runtime named by the user is not there.
        PlanError: None was requested.
    """
    if "all" in names:
        return [record.runtime for record in survey_runtimes() if record.outcome is Outcome.OK]
    if not names:
        raise PlanError("No runtime is named.", hint="Give --runtime NAME, or --runtime all.")
    for name in names:
        available = get_runtime(name).available()
        if isinstance(available, Unsupported):
            raise RuntimeUnavailableError(f"Runtime '{name}' is not available: {available.reason}")
    return list(dict.fromkeys(names))
