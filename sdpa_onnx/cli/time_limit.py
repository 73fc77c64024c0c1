"""The time limit of a command, `--budget`, counted from the start of its process."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdpa_onnx.measure.deadline import Deadline

__all__ = ["command_deadline", "process_age"]

# Field of /proc/PID/stat, counted after the name in parentheses: start of the process in ticks since boot.
# Source: proc_pid_stat(5), field 22.
_START_FIELD = 19


def command_deadline(budget: float | None) -> "Deadline":
    """When the work of a command must end.

    Args:
        budget: Seconds for the command; None = no limit.
    """
    from sdpa_onnx.measure.time_limit import limited_to

    return limited_to(budget, elapsed_seconds=0.0 if budget is None else process_age())


def process_age(stat: Path = Path("/proc/self/stat")) -> float:
    """Seconds since this process began: starting Python and importing belong to a command.

    Where the system does not report it, the CPU time so far, which is less.

    Args:
        stat: The system's description of the process.
    """
    try:
        ticks = int(stat.read_text().rpartition(")")[2].split()[_START_FIELD])
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()
