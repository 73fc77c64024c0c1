"""A function for worker processes that stands in for `job_worker.carry_out`: quick, or fatal, or endless.

The seed of the job says which. Imports nothing of ours, so that a process starts quickly.
"""

import json
import os
import signal
import time
from pathlib import Path

KILLED, ENDLESS, FULL = 101, 102, 103


def answer(data: bytes) -> bytes:
    """Write the process id into the folder of the run, then do what the seed asks for."""
    request = json.loads(data)
    Path(request["folder"], f"pid-{os.getpid()}").touch()
    seed = request["job"]["seed"]
    if seed == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == ENDLESS:
        time.sleep(600)
    if seed == FULL:
        return json.dumps({"unwritable": "Cannot write it: No space left on device."}).encode()
    record = {"kind": "saturation", "schema": 2, "case": str(seed), "outcome": "ok"}
    return json.dumps({"records": [record], "seconds": 0.5}).encode()
