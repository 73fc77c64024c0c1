"""Count the faults in a module that its tests do not notice; prints a Markdown table, then each fault not noticed.

Run from the root of the repository: `OMP_NUM_THREADS=1 nice -n 15 python -m scripts.mutate --seed 13 --number 40`, or
with names of modules for only those; `--line N` takes only faults of line N, to see that a new test notices them.
One place of a module is changed (an operator, a constant, a limit; a term, a factor, a statement left out), and the
module's tests run until the first fails; running three times as long as usual counts as failing. The sample is random,
by seed. No file is changed: each fault runs in a forked process, which reads the changed module from memory.
Whether a fault that no test notices computes the same, or a test is missing, is for the reader to see.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Literal, TypeGuard

# The tests need these anyway; imported once here, they cost each fault nothing. Nothing that imports our own package.
import hypothesis
import ml_dtypes
import msgspec
import onnx_ir
import pytest
import scipy.special
import torch

_PRELOADED = (hypothesis, ml_dtypes, msgspec, onnx_ir, scipy.special, torch)

# The quick tests of each module, in the order in which they run.
_TESTS: dict[str, tuple[str, ...]] = {
    "core.attention.oracle": ("core/attention/test_oracle.py",),
    "core.attention.masks": ("core/attention/test_masks.py",),
    "core.attention.stages": ("core/attention/test_stages.py",),
    "core.judge.bounds": ("core/judge/test_bounds_formula.py", "core/judge/test_bounds.py"),
    "core.judge.sigma": ("core/judge/test_sigma_formula.py",),
    "core.judge.agreement": ("core/judge/test_agreement.py", "core/judge/test_directions.py"),
    "core.judge.evidence": ("core/judge/test_evidence.py", "core/judge/test_directions.py"),
    "core.judge.directions": ("core/judge/test_directions_formula.py", "core/judge/test_directions.py"),
    "core.timing.paired": ("core/timing/test_paired.py",),
    "sweep.store": ("sweep/test_store.py",),
}
# Seconds each: whole grids of right kernels, planted faults at every spread, every byte of a file, two processes.
_LEFT_OUT = (
    "right_results_lie_inside",
    "planted_fault_is_wrong",
    "big_cases",
    "torn_at_every_byte",
    "two_processes",
)
_TIMES_SLOWER, _GRACE_SECONDS = 3.0, 10.0

_OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.And: (ast.Or,), ast.Or: (ast.And,),
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mod,),
    ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.Pow: (ast.Mult,),
}  # fmt: skip
_NAMES = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "fmin": "fmax", "fmax": "fmin",
    "any": "all", "all": "any", "zeros": "ones", "ones": "zeros", "argmax": "argmin", "argmin": "argmax",
    "mean": "sum", "sum": "mean", "logical_or": "logical_and", "logical_and": "logical_or",
    "exp": "expm1", "expm1": "exp",
}  # fmt: skip
_TRANSPARENT_CALLS = ("abs", "sqrt", "log", "tanh", "exp", "expm1", "isfinite", "isneginf", "float", "int", "astype")
_UNCHANGED = (ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One changed place of a module: where in its bytes, and what is there instead."""

    line: int
    start: int
    stop: int
    old: str
    new: str

    def planted(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.stop :]

    def __str__(self) -> str:
        return f"{self.line}: `{self.old}` -> `{self.new}`"


def faults_of(source: bytes) -> list[Fault]:
    """Every fault of a module that is still Python, in the order of its lines."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _nodes(ast.parse(source)):
        for place, new in _variants(node):
            start = starts[place.lineno - 1] + place.col_offset
            stop = starts[(place.end_lineno or 0) - 1] + (place.end_col_offset or 0)
            old = " ".join(source[start:stop].decode().split())
            fault = Fault(line=place.lineno, start=start, stop=stop, old=old, new=new)
            try:
                compile(fault.planted(source), "", "exec")
            except SyntaxError:
                continue
            found.append(fault)
    return found


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes except texts, types, decorators and imports, in which a fault is no arithmetic."""
    yield node
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST) and not isinstance(child, _UNCHANGED):
                yield from _nodes(child)


def _variants(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """(what is replaced, its replacement) for each fault of one node."""
    if isinstance(node, ast.expr):
        for changed in _changed(node):
            yield node, changed if isinstance(changed, str) else f"({ast.unparse(changed)})"
    elif isinstance(node, ast.If | ast.While):
        yield node.test, "True"
        yield node.test, "False"
    elif isinstance(node, ast.AugAssign):
        yield node, "pass"
        for other in _OPERATORS.get(type(node.op), ()):
            yield node, ast.unparse(ast.AugAssign(node.target, other(), node.value))  # type: ignore[arg-type] # ty: an operator
    elif _can_be_left_out(node):
        yield node, "pass"


def _can_be_left_out(node: ast.AST) -> TypeGuard[ast.stmt]:
    match node:
        case ast.Raise() | ast.Continue() | ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Subscript()]):
            return True
    return False


def _changed(node: ast.expr) -> Iterator[ast.expr | str]:  # noqa: C901, PLR0912 - a branch per kind of node
    """Each other expression in place of one."""
    match node:
        case ast.Compare(ops=[operator]):
            for other in _OPERATORS.get(type(operator), ()):
                yield _with(node, ops=[other()])
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator):
            for other in _OPERATORS.get(type(operator), ()):
                yield _with(node, op=other())
            yield from (node.left, node.right) if isinstance(node, ast.BinOp) else node.values
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.Constant(value=bool() as value):
            yield repr(not value)
        case ast.Constant(value=int() as value):
            yield from (str(value + 1), str(value - 1))
        case ast.Constant(value=float() as value):
            yield from (repr(value * 1.3), "0.0") if value else ("1.0", "-1.0")
        case ast.Name(id=name) if name in _NAMES:
            yield _NAMES[name]
        case ast.Attribute(attr=name) if name in _NAMES:
            yield ast.unparse(_with(node, attr=_NAMES[name]))
        case ast.Slice(lower=lower, upper=upper):
            for name, limit in (("lower", lower), ("upper", upper)):
                if limit is not None:
                    yield ast.unparse(_with(node, **{name: None}))
                    yield ast.unparse(_with(node, **{name: ast.BinOp(limit, ast.Add(), ast.Constant(1))}))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first]) if name in _TRANSPARENT_CALLS:
            own = node.func.value if name == "astype" and isinstance(node.func, ast.Attribute) else first
            yield own
        case ast.Call(func=ast.Attribute(attr="where"), args=[_, one, other]):
            yield from (one, other)


def _with(node: ast.expr, **fields: object) -> ast.expr:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


class _FromMemory(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from code in memory."""

    def __init__(self, module: str, code: CodeType, path: Path) -> None:
        self.module, self.code, self.path = module, code, path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)  # noqa: S102 - this is what a loader does


def run_tests(module: str, source: bytes, path: Path, limit_s: float) -> Literal["passed", "failed", "slow"]:
    """Run a module's tests with this source in a forked process."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        code = 3
        try:
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in (1, 2):
                os.dup2(silent, stream)
            os.environ["CI"] = "1"  # hypothesis draws the same examples every time
            name = f"sdpa_onnx.{module}"
            sys.meta_path.insert(0, _FromMemory(name, compile(source, str(path), "exec"), path))
            tests = [f"tests/{test}" for test in _TESTS[module]]
            # Plain assertions: pytest's rewriting would import our package before the finder above.
            options = ("-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-m", "not slow and not alone")
            code = int(pytest.main([*options, "-k", f"not ({' or '.join(_LEFT_OUT)})", *tests]))
        finally:
            os._exit(code)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "slow"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(_TESTS)}; default: all")
    parser.add_argument("--seed", type=int, default=13, help="seed of the sample")
    parser.add_argument("--number", type=int, default=40, help="faults of each module")
    parser.add_argument("--line", type=int, action="append", help="only faults of this line")
    arguments = parser.parse_args()
    print("| module | faults | sample | noticed | not noticed | seconds |\n|---|---|---|---|---|---|", flush=True)
    rest = []
    for module in arguments.modules or _TESTS:
        start = time.monotonic()
        path = Path("sdpa_onnx", *module.split(".")).with_suffix(".py")
        source = path.read_bytes()
        if run_tests(module, source, path, 600.0) != "passed":
            raise SystemExit(f"The tests of {module} fail without a fault.")
        limit_s = _TIMES_SLOWER * (time.monotonic() - start) + _GRACE_SECONDS
        faults = [fault for fault in faults_of(source) if not arguments.line or fault.line in arguments.line]
        rng = random.Random(f"{arguments.seed} {module}")  # noqa: S311 - no secret
        sample = rng.sample(faults, min(arguments.number, len(faults)))
        missed = [fault for fault in sample if run_tests(module, fault.planted(source), path, limit_s) == "passed"]
        seconds = time.monotonic() - start
        noticed = len(sample) - len(missed)
        print(f"| `{module}` | {len(faults)} | {len(sample)} | {noticed} | {len(missed)} | {seconds:.0f} |", flush=True)
        rest.append((module, sorted(missed, key=lambda fault: fault.start)))
        sys.stderr.writelines(f"{module}:{fault}\n" for fault in rest[-1][1])
        sys.stderr.flush()
    for module, missed in rest:
        print(f"\n`{module}`:\n")
        print("\n".join(f"- {fault}" for fault in missed))


if __name__ == "__main__":
    main()
