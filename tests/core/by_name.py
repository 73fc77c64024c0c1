"""Probes, readings and planted faults by their names."""

from sdpa_onnx.core.attention.probes import PROBES, Probe
from sdpa_onnx.core.faults.fault_kind import Fault
from sdpa_onnx.core.faults.planted_faults import FAULTS
from sdpa_onnx.core.faults.readings import READINGS, Reading

__all__ = ["find_fault", "find_probe", "find_reading"]


def find_fault(name: str) -> Fault:
    """The fault of that name."""
    return {fault.name: fault for fault in FAULTS}[name]


def find_probe(name: str) -> Probe:
    """The probe of that name."""
    return {probe.name: probe for probe in PROBES}[name]


def find_reading(name: str) -> Reading:
    """The reading of that name."""
    return {reading.name: reading for reading in READINGS}[name]
