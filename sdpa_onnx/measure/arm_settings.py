"""The settings with which a worker runs an arm as the runtime itself would for timing."""

from collections.abc import Mapping

from sdpa_onnx.errors import PlanError, RuntimeNotFoundError, RuntimeUnavailableError
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, get_runtime, runtime_names
from sdpa_onnx.runtimes.engine import Engine, engine_place

__all__ = ["arm_settings", "engine_of", "option_takers", "place_of", "takes_options"]

# Several workers stand ready on the same cores: threads that spin for work would take them from the arm that is timed.
# Source: METHOD B.4.
_CO_RESIDENT = {"session.intra_op.allow_spinning": "0"}
# These decide what an arm is, and are chosen by other means.
_FIXED = frozenset({"provider", "device", "intra_op_num_threads", "inter_op_num_threads", "INFERENCE_NUM_THREADS"})


def engine_of(runtime: str) -> Engine | None:
    """The engine of a registered runtime; None for one that has none."""
    try:
        found = get_runtime(runtime)
    except (RuntimeNotFoundError, RuntimeUnavailableError):  # a module's own, or a plug-in that cannot be imported
        return None
    engine: Engine | None = getattr(found, "engine", None)
    return engine


def place_of(runtime: str) -> str:
    """Where a worker finds the engine of a runtime, or ""; see `ArmJob.engine`."""
    engine = engine_of(runtime)
    return "" if engine is None else engine_place(engine)


def takes_options(runtime: str) -> bool:
    """Whether a user may change what a runtime is configured with."""
    return bool(getattr(engine_of(runtime), "takes_options", False))


def option_takers() -> str:
    """The runtimes that take options, in words."""
    *names, last = (name for name in runtime_names() if takes_options(name))
    return f"{', '.join(names)} and {last}"


def arm_settings(runtime: str, *, threads: int, options: Mapping[str, str] | None = None) -> dict[str, object]:
    """The settings of an `ArmJob`: the runtime's own for timing, and over them those that the user gives.

    Args:
        runtime: Registered name.
        threads: Inside one operator.
        options: The user's. For ONNX Runtime an attribute of SessionOptions, a session configuration entry or
            "provider.NAME"; for OpenVINO a property. The worker refuses a name that it does not know.

    Raises:
        PlanError: Options for another runtime, or one that decides the device or the threads.
    """
    options = options or {}
    fixed = sorted(_FIXED & options.keys())
    if fixed:
        raise PlanError(f"'{fixed[0]}' is no option of an arm.", hint="Name the runtime and the threads instead.")
    if options and not takes_options(runtime):
        raise PlanError(f"Runtime '{runtime}' takes no options.", hint=f"Options are for {option_takers()}.")
    engine = engine_of(runtime)
    if engine is None:
        return {}
    from sdpa_onnx.runtimes.engine_runtime import engine_settings

    settings = engine_settings(engine, LoadOptions(threads=threads, purpose=Purpose.TIMING))
    return {**settings, **(_CO_RESIDENT if "provider" in settings else {}), **options}
