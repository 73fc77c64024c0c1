"""What the gates of a comparison allow, each limit with its name, unit and reason."""

from dataclasses import dataclass

from sdpa_onnx.core.records.gate_records import Gate

__all__ = ["GateLimits"]

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """How much worse HEAD may be.

    Args:
        margin: Slow-down that is allowed, as a share: shared runners differ by at least that for identical code. What
            is below it is told. Source: PEERS 4.3 (5 to 15 %).
        more_nodes: Nodes that really run, as a share. One more copy or cast in a small graph is above it; the twentieth
            in a model of hundreds is not, and time is asked beside it.
        larger_file, larger_file_bytes: The file must grow by more than this share and by more than this many bytes to
            fail: names and metadata alone never reach a mebibyte.
        more_memory, more_memory_bytes: The same for peak memory above the loaded state. Sixteen processes of
            onnxruntime that ran the same 21 MiB differed by 0.2 MiB; other allocators take larger pieces.
        alpha: Chance of one false alarm of the time gate in a whole table where nothing changed. Source: METHOD B.4.
        allowed: Gates that are told and never fail.
        skipped: Gates that are not asked.
        strict: Whether what is undecided, not comparable or gone fails too.
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
