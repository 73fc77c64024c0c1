"""What one arm of a comparison is, as a worker process receives it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.records.timing_records import NodeTime

__all__ = ["ArmJob", "KernelTimes", "LoadTimes", "RanFacts", "Visit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmJob:
    """What a worker loads.

    Args:
        runtime: Our name of the runtime.
        engine: Where a worker finds its engine, see `engine.engine_place`; "" for a runtime that has none, which runs
            in our environment only.
        model: File of the model; folder: where its tensor files lie, or None.
        inputs: Folder of the arrays by input name, as `runtimes.array_files` writes them.
        new_length_inputs: The same at other sizes, to time the first run there; None where every axis is fixed.
        threads: Threads inside one operator.
        names: Names of the graph: "inputs", "outputs" and "defaults"; see `engine.Engine.open`.
        settings: What the runtime is configured with, as the runtime itself would be (session options, properties).
        python: Interpreter of another environment; None = ours.
        copies: Sets of inputs that calls take in turn; above 1 so that each call finds a cold cache.
    """

    runtime: str
    engine: str
    model: Path
    folder: Path | None = None
    inputs: Path
    new_length_inputs: Path | None = None
    threads: int = 1
    names: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    python: Path | None = None
    copies: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTimes:
    """What loading took, once in this process, seconds of wall time; -1 where it was not measured.

    Args:
        create_seconds: Creating the session.
        first_seconds: The first run.
        new_length_seconds: The first run at another length, the process being warm.
        loaded_bytes: Resident memory with the session loaded and the inputs bound, before the first run.
        peak_bytes: Greatest resident memory of the first runs above that.
        version: Of the runtime's package, as the process sees it, e.g. "onnxruntime 1.31.0".
        device: "cpu" or "cuda".
        warnings: What makes the times other than they seem, whole sentences.
    """

    create_seconds: float
    first_seconds: float
    new_length_seconds: float = -1.0
    loaded_bytes: int = -1
    peak_bytes: int = -1
    version: str = ""
    device: str = "cpu"
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One visit.

    Args:
        wall_ns, cpu_ns: (calls,), int64. On a GPU (samples,): wall_ns holds the time between events and cpu_ns the
            host's wall time, both per call; a sample is the mean of up to ten calls, as many for every visit of an arm.
        switches: Involuntary context switches of the visit.
        faults: Page faults of the visit.
        clock_mhz: Clock of the GPU, or -1.
    """

    wall_ns: NDArray[np.int64]
    cpu_ns: NDArray[np.int64]
    switches: int
    faults: int
    clock_mhz: float = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """The runtime's own profile of a call; -1 where it has none.

    Args:
        kernel_seconds: Inside kernels.
        call_seconds: The whole call, the same one; the difference is what the host adds.
        nodes: The nodes that took longest, longest first; empty where they are not reported.
    """

    kernel_seconds: float = -1.0
    call_seconds: float = -1.0
    nodes: tuple[NodeTime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RanFacts:
    """What the worker knows of what ran.

    Args:
        facts: What an engine reports, see `engine.Opened`.
        report: A finished report, where the runtime has no engine.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    report: object | None = None
