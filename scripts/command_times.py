"""Time the commands for one model on a tiny module, next to a bare `torch.onnx.export` of it, each in a fresh process.

Prints for each the medians of wall seconds and of user plus system seconds, those of its child processes included, and
the ratio of `export` to the bare export. Rounds are interleaved, so that a busy machine disturbs all alike.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_MODULE = '''\
"""Grouped-query attention with its projections, as in README.md."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Block(nn.Module):
    def __init__(self, width: int = 256, heads: int = 8, kv_heads: int = 2) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * kv_heads * self.head_dim)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2)
        key, value = self.key_value(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2).chunk(2, dim=1)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(attended.transpose(1, 2).flatten(2))

    def sample_inputs(self) -> tuple[torch.Tensor]:
        return (torch.randn(2, 16, 256),)
'''
_BARE = """\
import torch
from mymodel import Block

block, dynamic = Block().eval(), torch.export.Dim.DYNAMIC
torch.onnx.export(
    block, block.sample_inputs(), "bare.onnx", dynamo=True, opset_version=23, dynamic_shapes=({0: dynamic, 1: dynamic},)
)
"""
# In an order in which each has the files that it reads.
_COMMANDS = {
    "bare torch.onnx.export": ("bare.py",),
    "export": ("-m", "sdpa_onnx", "export", "mymodel.py:Block", "-o", "block.onnx"),
    "help": ("-m", "sdpa_onnx", "--help"),
    "export sdpa": ("-m", "sdpa_onnx", "export", "sdpa", "-o", "sdpa.onnx"),
    "inspect": ("-m", "sdpa_onnx", "inspect", "block.onnx"),
    "verify": ("-m", "sdpa_onnx", "verify", "block.onnx"),
    "convert": ("-m", "sdpa_onnx", "convert", "block.onnx", "-o", "blocked.onnx", "--form", "blocked"),
}


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each command")
    parser.add_argument("--only", action="append", choices=list(_COMMANDS), help="one command; repeatable")
    args = parser.parse_args()
    names = list(_COMMANDS) if args.only is None else args.only
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mymodel.py").write_text(_MODULE, encoding="utf-8")
        (Path(folder) / "bare.py").write_text(_BARE, encoding="utf-8")
        if "export" not in names:
            _seconds("export", folder)
        for _ in range(args.rounds):
            for name in names:
                seconds[name].append(_seconds(name, folder))
    print(f"{'command':<24}{'wall s':>8}{'user+sys s':>12}")
    for name, taken in seconds.items():
        wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"{name:<24}{wall:>8.2f}{cpu:>12.2f}")
    if {"export", "bare torch.onnx.export"} <= seconds.keys():
        pairs = list(zip(seconds["export"], seconds["bare torch.onnx.export"], strict=True))
        wall, cpu = (statistics.median(ours[column] / bare[column] for ours, bare in pairs) for column in (0, 1))
        print(f"export / bare torch.onnx.export: {wall:.2f} of the wall time, {cpu:.2f} of the CPU time")


def _seconds(name: str, folder: str) -> tuple[float, float]:
    """Wall and CPU seconds of one run of a command."""
    # As installed: a setting that keeps Python from storing bytecode would compile our package anew in each process.
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *_COMMANDS[name]],
        cwd=folder,
        env=environ,
        capture_output=True,
        check=False,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
