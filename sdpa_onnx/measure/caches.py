"""The last-level cache of this processor, and how many copies of its inputs a case needs to miss it.

Reads the system's own description; measures nothing.
"""

import math
from pathlib import Path

__all__ = ["cold_copies", "last_level_bytes"]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MEMORY = Path("/proc/meminfo")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# Where the system does not report it: the largest that is common (a server's share of 32 MiB).
_USUAL_BYTES = 32 * 2**20
# What copies of all arms together may take of the memory that is free.
_MEMORY_SHARE = 0.25
# More copies would each be so small that binding them costs more than reading them.
_MOST_COPIES = 256


def last_level_bytes(caches: Path = _CACHES) -> int:
    """Size of the largest cache that holds data, bytes.

    Args:
        caches: The system's folder of the caches of one core.
    """
    found = [_bytes(index) for index in caches.glob("index*") if _read(index / "type") != "Instruction"]
    return max(found, default=0) or _USUAL_BYTES


def cold_copies(input_bytes: int, *, arms: int, cache_bytes: int | None = None, memory: Path = _MEMORY) -> int:
    """Copies of the inputs, at least two and together twice the last-level cache: no call finds its own there.

    One where the memory holds no more: calls are then not cold by any doing of ours.

    Args:
        input_bytes: Of one call.
        arms: Processes that hold such copies at once.
        cache_bytes: Of the cache; None = as the system reports.
        memory: The system's description of its memory.
    """
    wanted = max(2, math.ceil(2 * (cache_bytes or last_level_bytes()) / max(input_bytes, 1)))
    free = _free_bytes(memory)
    allowed = wanted if free is None else int(_MEMORY_SHARE * free / (max(arms, 1) * max(input_bytes, 1)))
    return max(1, min(wanted, allowed, _MOST_COPIES))


def _free_bytes(memory: Path) -> int | None:
    line = next((line for line in _read(memory).splitlines() if line.startswith("MemAvailable:")), None)
    return None if line is None else int(line.split()[1]) * 2**10


def _bytes(index: Path) -> int:
    text = _read(index / "size")
    number, unit = text[:-1], text[-1:]
    return int(number) * _UNITS[unit] if number.isdecimal() and unit in _UNITS else 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
