"""Defines the limits of the gates of a comparison, each with its name, unit and reason.

Values only; the gates apply them.
"""

from dataclasses import dataclass

from sdpa_onnx.core.records.gate_records import Gate

__all__ = ["GateLimits"]

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """How much worse HEAD may be.

    Args:
        margin: Allowed slow-down, as a share: shared runners differ by at least that for identical code. A smaller
            slow-down is reported. Source: PEERS 4.3 (5 to 15 %).
        more_nodes: Allowed increase of executed nodes, as a share. One more copy or cast in a small graph exceeds it;
            one more node among hundreds does not, and there the time gate applies.
        larger_file, larger_file_bytes: The file must grow by more than this share and by more than this many bytes to
            fail; names and metadata alone never reach a mebibyte.
        more_memory, more_memory_bytes: The same for peak memory above the loaded state. Sixteen onnxruntime processes
            with the same 21 MiB model differed by 0.2 MiB; other allocators use larger blocks.
        alpha: False alarm rate of the time gate over a whole table in which nothing changed. Source: METHOD B.4.
        allowed: Gates that report but never fail.
        skipped: Gates that are not run.
        strict: Whether undecided, not comparable and disappeared results fail too.
    """

    margin: float = 0.05
    more_nodes: float = 0.10
    larger_file: float = 0.10
    larger_file_bytes: int = _MIB
    more_memory: float = 0.10
    more_memory_bytes: int = 4 * _MIB
    alpha: float = 0.01
    allowed: frozenset[Gate] = frozenset()
    skipped: frozenset[Gate] = frozenset()
    strict: bool = False
