"""Record timing sessions on this machine, and measure false verdicts and power of the paired timing on them.

    python -m scripts.timing_trials record FOLDER --setting quiet-512 --sessions 10
    python -m scripts.timing_trials table FOLDER
    python -m scripts.timing_trials plot FOLDER -o docs/concepts/timing-power.svg

A session is one comparison from fresh processes, as in `bench`, but always up to the last look: the
decomposed attention, two more processes of it, and three copies with extra work (without those: `--equal-only`).
`record` continues where it stopped.
`table` stops each session where the product would stop: A/A over the equal arms of every session and over launches
drawn from all sessions, power over the planted ones, and the results of other comparison methods on the same seconds.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import sdpa_onnx
from scripts.planted_work import with_extra_work
from scripts.timing_table import print_tables, write_plot
from sdpa_onnx.core.timing.paired import LOOKS, StoppingLook
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.timing.comparison import Arm, TimedComparison, bench

__all__ = ["PLANTS", "SETTINGS"]

# Rows of extra work that make a call about 2, 5 and 10 % slower, by length; the table has the real slow-down.
PLANTS = {128: (1, 5, 24), 512: (8, 70, 130), 1024: (40, 120, 220)}
SETTINGS = tuple(f"{load}-{length}" for load in ("quiet", "loaded") for length in PLANTS)
# A loop that never sleeps and copies memory, one per core.
_BUSY = "import numpy as np\na = np.ones((400, 400), dtype=np.float32)\nwhile True:\n    a = a @ a * 0 + 1\n"
_CORES = 2
_LONG_SECONDS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The length of the attention, and whether other processes load every core."""

    name: str

    @property
    def length(self) -> int:
        return int(self.name.partition("-")[2])

    @property
    def is_loaded(self) -> bool:
        return self.name.startswith("loaded")


def main() -> None:
    """Record sessions, or print the results of recorded ones."""
    chosen = _arguments()
    match chosen.action:
        case "record":
            for name in chosen.setting or SETTINGS:
                models = _models(Setting(name=name).length, with_plants=not chosen.equal_only)
                _record(Setting(name=name), models, chosen)
        case "table":
            print_tables(chosen.folder, SETTINGS)
        case _:
            write_plot(chosen.folder, SETTINGS, chosen.output)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=["record", "table", "plot"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--setting", choices=SETTINGS, action="append")
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--launches", type=int, default=LOOKS[-1].launches)
    parser.add_argument("--equal-only", action="store_true", help="record: leave the planted copies out")
    parser.add_argument("-o", "--output", type=Path, default=Path("timing-power.svg"))
    return parser.parse_args()


def _record(setting: Setting, models: dict[str, OnnxModel], chosen: argparse.Namespace) -> None:
    """Record the missing sessions of a setting."""
    target = chosen.folder / setting.name
    target.mkdir(parents=True, exist_ok=True)
    for number in range(chosen.sessions):
        path = target / f"{number:03}.npz"
        if path.exists():
            continue
        with _load(setting):
            comparison = _session(models, setting.length, chosen, seed=number)
        _save(comparison, path)
        print(f"{setting.name} {number}: {comparison.seconds:.0f} s", flush=True)


def _models(length: int, *, with_plants: bool) -> dict[str, OnnxModel]:
    spec = sdpa_onnx.AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=64)
    base = sdpa_onnx.export(spec, opset=18)
    planted = enumerate(PLANTS[length] if with_plants else ())
    return {"base": base, "same": base} | {
        f"plant {number}": with_extra_work(base, rows=rows) for number, rows in planted
    }


def _session(models: dict[str, OnnxModel], length: int, chosen: argparse.Namespace, *, seed: int) -> TimedComparison:
    plan = TimingPlan(
        looks=(StoppingLook(launches=chosen.launches, alpha=0.01),),
        blocks=chosen.blocks,
        least_blocks=chosen.blocks,
        budget_seconds=_LONG_SECONDS,
        extras=False,
        seed=seed,
    )
    runtime = get_runtime("ort-cpu")
    return bench(
        [Arm(name=name, model=model, runtime=runtime) for name, model in models.items()],
        CheckOptions(sizes={"batch_size": 1, "q_seq_len": length, "kv_seq_len": length}, spreads=(1.0,), seed=seed),
        target="trial",
        baseline="base",
        plan=plan,
    )


@contextlib.contextmanager
def _load(setting: Setting) -> Iterator[None]:
    """Load every core with another process, if the setting requires it."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(_CORES if setting.is_loaded else 0)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _save(comparison: TimedComparison, path: Path) -> None:
    """Write a complete session atomically: an interrupted one is recorded again."""
    arrays = {
        f"{name}/{clock}": np.asarray(getattr(samples, f"{clock}_seconds"), dtype=np.float32)
        for name, samples in comparison.samples.items()
        for clock in ("wall", "cpu")
    }
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        np.savez_compressed(file, allow_pickle=False, seconds=np.array(comparison.launch_seconds), **arrays)
    Path(file.name).replace(path)


if __name__ == "__main__":
    main()
