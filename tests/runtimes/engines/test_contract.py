"""The contract of an engine: one suite for every file in the folder; a missing package is a skip with its reason."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tests.runtimes.engines import child
from tests.runtimes.engines.faulty import FAULTS, Right
from tests.runtimes.engines.jobs import (
    ENGINES,
    ONE,
    RAGGED,
    ROOT,
    Engine,
    assert_right,
    drawn,
    engine_of,
    entry_of,
    in_child,
    opened,
    plain_model,
    result_of,
)

# Engines that start a compiler for each model, which takes seconds.
_COMPILERS = ("emx", "iree")
# Seen in OpenVINO 2026.4.1: memory that nobody wrote.
_WRONG_NUMBERS = {("openvino", "zero_lengths")}
_FAULTY = "tests.runtimes.engines.faulty:"
_PLACES = re.compile(r"/\w+/|\.(rs|cc|cpp|py|c):\d|[Bb]acktrace|Traceback|\n")
_RAN_FIELDS = {"assigned", "provider", "optimised", "precision", "threads", "warnings", "execution", "hint"}
_CASES = [pytest.param(name, marks=[pytest.mark.slow] if name in _COMPILERS else []) for name in ENGINES]
_ODD_NAMES = {"Q": "q/in:0", "K": "é", "V": "1 2", "Y": "out.put/0"}


@pytest.fixture(params=_CASES)
def entry(request: pytest.FixtureRequest) -> str:
    """One engine that can run here."""
    found = entry_of(request.param)
    engine = engine_of(found)
    try:
        engine.version()
    except ImportError as error:
        pytest.skip(f"{error}: {engine.install}")
    if reason := getattr(engine, "unavailable", lambda: None)():
        pytest.skip(reason)
    return found


def check_version(entry: str, tmp_path: Path) -> None:
    """A package and a number."""
    assert re.fullmatch(r"[\w-]+ \d[\w.+]*", engine_of(entry).version())


def check_right_at_two_sizes(entry: str, tmp_path: Path) -> None:
    """One loaded model serves other sizes, and the judge finds nothing."""
    engine = engine_of(entry)
    loaded = opened(engine, plain_model())
    for sizes in (RAGGED, ONE):
        arrays = drawn(sizes)
        assert_right(engine, arrays, result_of(loaded, arrays))
    loaded.close()


def check_second_run_is_its_own(entry: str, tmp_path: Path) -> None:
    """Other inputs of the same sizes give another result, and the first inputs the first one again."""
    loaded = opened(engine_of(entry), plain_model())
    first, second, again = (result_of(loaded, drawn(RAGGED, seed=seed)).copy() for seed in (1, 2, 1))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, again)


def check_outputs_are_the_callers(entry: str, tmp_path: Path) -> None:
    """No run writes into what an earlier run returned, nor into its inputs, and the caller may write into it."""
    loaded = opened(engine_of(entry), plain_model())
    arrays = drawn(RAGGED, seed=1)
    first = result_of(loaded, arrays)
    kept = first.copy()
    result_of(loaded, drawn(RAGGED, seed=2))
    loaded.close()
    assert np.array_equal(first, kept)
    assert all(np.array_equal(array, drawn(RAGGED, seed=1)[name]) for name, array in arrays.items())
    assert first.flags.writeable


def check_missing_input_is_an_error(entry: str, tmp_path: Path) -> None:
    """An input that is not given is never the last run's."""
    loaded = opened(engine_of(entry), plain_model())
    arrays = drawn(RAGGED)
    result_of(loaded, arrays)
    assert_a_line(failure(engine_of(entry), lambda: result_of(loaded, {"Q": arrays["Q"], "K": arrays["K"]})))


def check_zero_lengths(entry: str, tmp_path: Path) -> None:
    """No keys, no queries, no batch: right, or refused with a reason; the process goes on."""
    cases = ((2, 5, 0), (2, 0, 7), (0, 5, 7))
    for sizes, answer in zip(cases, in_child(entry, "runs", *cases), strict=True):
        if "refused" in answer:
            assert_a_line(answer["refused"])
        else:
            arrays = drawn(sizes)
            assert_right(engine_of(entry), arrays, np.array(answer["values"], answer["type"]).reshape(answer["shape"]))


def check_float16(entry: str, tmp_path: Path) -> None:
    """float16 is right or refused."""
    assert_right_or_refused(engine_of(entry), "float16")


def check_bfloat16(entry: str, tmp_path: Path) -> None:
    """bfloat16 is right or refused."""
    assert_right_or_refused(engine_of(entry), "bfloat16")


def check_odd_names(entry: str, tmp_path: Path) -> None:
    """Names with slashes, colons, spaces and letters outside ASCII work as others do."""
    engine = engine_of(entry)
    arrays = drawn(RAGGED)
    loaded = opened(engine, plain_model(names=_ODD_NAMES))
    renamed = {_ODD_NAMES[name]: array for name, array in arrays.items()}
    assert_right(engine, arrays, result_of(loaded, renamed, _ODD_NAMES["Y"]))
    shuffled = {name: renamed[name] for name in reversed(renamed)}
    assert_right(engine, arrays, result_of(loaded, shuffled, _ODD_NAMES["Y"]))


def check_external_data(entry: str, tmp_path: Path) -> None:
    """A file, and bytes with a folder, find the tensors that lie in other files."""
    engine = engine_of(entry)
    arrays = drawn(RAGGED)
    proto = with_far_factor(tmp_path)
    for source in (
        {"model": str(tmp_path / "model.onnx"), "folder": None},
        {"model": proto.SerializeToString(), "folder": str(tmp_path)},
        {"model": str(tmp_path / "apart" / "model.onnx"), "folder": str(tmp_path)},
    ):
        loaded = opened(engine, proto, **source)
        assert_right(engine, arrays, result_of(loaded, arrays))
        loaded.close()


def check_threads(entry: str, tmp_path: Path) -> None:
    """The threads are those of the job where they are reported at all; one thread adds no more than its own."""
    engine = engine_of(entry)
    one, three = (in_child(entry, "threads", count) for count in (1, 3))
    assert one["reported"] in (None, 1)
    most = 1 if getattr(engine, "threads", "any") == "one" else 3
    # OpenVINO takes no more than there are cores, of which a machine may show each twice.
    assert three["reported"] in (None, *range(min(most, 2, os.cpu_count() or most), most + 1))
    if three["reported"] == 3:
        added = three["new"] - one["new"]
        assert added == 0 or added >= 2  # 0: the pool is not made before there is enough to do


def check_explains_in_a_line(entry: str, tmp_path: Path) -> None:
    """What is no model, and what a model asks for that is not there, is explained in one line without places."""
    engine = engine_of(entry)
    unknown = plain_model()
    unknown.graph.node[3].op_type = "Softmaxx"
    (tmp_path / "broken.onnx").write_bytes(b"this is no model")
    broken = {"model": str(tmp_path / "broken.onnx")}
    assert_a_line(failure(engine, lambda: result_of(opened(engine, unknown), drawn(RAGGED))))
    assert_a_line(failure(engine, lambda: result_of(opened(engine, plain_model(), **broken), drawn(RAGGED))))


def check_prints_nothing(entry: str, tmp_path: Path) -> None:
    """Loading, running, refusing and reporting leave stdout to the results."""
    assert in_child(entry, "printed") == ""


def check_leaves_no_files(entry: str, tmp_path: Path) -> None:
    """What is closed leaves nothing in the folder for temporary files, nor in the current one."""
    before = sorted(Path.cwd().iterdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        loaded = opened(engine_of(entry), plain_model())
        result_of(loaded, drawn(RAGGED))
        loaded.close()
    assert list(tmp_path.iterdir()) == []
    assert sorted(Path.cwd().iterdir()) == before


def check_sends_nothing(entry: str, tmp_path: Path) -> None:
    """No module that sends is loaded, no connection is made, and no process is started but a compiler."""
    answer = in_child(entry, "sent")
    assert answer["modules"] == []
    assert [event for event in answer["events"] if not is_a_compiler(event)] == []


def check_ran_fields(entry: str, tmp_path: Path) -> None:
    """What ran has the fields that are read, and nodes by provider."""
    engine = engine_of(entry)
    loaded = opened(engine, plain_model())
    result_of(loaded, drawn(RAGGED))
    ran = child.ran_of(loaded)
    assert set(ran) <= _RAN_FIELDS
    for counts in ran.get("assigned", {}).values():
        assert all(isinstance(count, int) and count > 0 for count in counts.values())


def check_refuses_before_loading(entry: str, tmp_path: Path) -> None:
    """A plain MatMul is refused by nobody, and the question loads no package."""
    matmul = {"domain": "", "op_type": "MatMul", "types": ["float32"] * 2, "attributes": {}, "inputs": [True, True]}
    engine = engine_of(entry)
    if hasattr(engine, "refuses"):
        assert engine.refuses([]) is None
        assert engine.refuses([matmul]) is None


CHECKS: dict[str, Callable[[str, Path], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_engine(entry: str, check: Callable[[str, Path], None], tmp_path: Path) -> None:
    """Every engine keeps each sentence of the contract; wrong numbers of a runtime are for the judge to find."""
    if (engine_of(entry).name, check.__name__.removeprefix("check_")) in _WRONG_NUMBERS:
        pytest.skip("the runtime returns wrong numbers here, without an error")
    check(entry, tmp_path)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_a_right_engine_passes(check: Callable[[str, Path], None], tmp_path: Path) -> None:
    """The checks find nothing in an engine of numpy, so that what they find is a fault."""
    check(_FAULTY + Right.__name__, tmp_path)


@pytest.mark.parametrize(
    ("engine", "name"),
    [(engine, name) for engine, names in FAULTS.items() for name in names],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_planted_fault_is_found(engine: type[Any], name: str, tmp_path: Path) -> None:
    """Each check fails on an engine with the fault that it is for."""
    with pytest.raises((AssertionError, pytest.fail.Exception, UnicodeEncodeError)):
        CHECKS[name](_FAULTY + engine.__name__, tmp_path)


def test_every_check_has_a_fault() -> None:
    """A check that finds none of the planted faults would prove nothing."""
    found = {name for names in FAULTS.values() for name in names}
    assert set(CHECKS) - found == {"bfloat16", "refuses_before_loading"}


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_file_loads_no_package(name: str) -> None:
    """What is refused and which arithmetic is declared is answered in a process that has numpy only."""
    asked = f"engine = jobs_free.{entry_of(name).partition(':')[2]}()"
    program = (
        "import sys, numpy; before = set(sys.modules)\n"
        f"import {entry_of(name).partition(':')[0]} as jobs_free\n{asked}\n"
        "[getattr(engine, question)([]) for question in ('refuses',) if hasattr(engine, question)]\n"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['sdpa_onnx']"


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_says_what_it_is(name: str) -> None:
    """Its name, the one command that installs it, and whether its times mean something."""
    engine = engine_of(entry_of(name))
    assert re.fullmatch(r"[a-z][a-z-]*", engine.name)
    assert re.search(r"\b(pip|npm) install \S", engine.install)
    assert isinstance(engine.measures_time, bool)
    assert getattr(engine, "threads", "any") in ("any", "one")


def assert_a_line(text: str) -> None:
    assert text.strip()
    assert len(text) < 400, text
    assert not _PLACES.search(text), text
    assert not text.endswith("."), text


def failure(engine: Engine, call: Callable[[], NDArray[Any]]) -> str:
    """The reason that a user reads."""
    result, reason = child.attempt(engine, call)
    assert result is None, "nothing was raised"
    return reason


def assert_right_or_refused(engine: Engine, dtype: str) -> None:
    arrays = drawn(RAGGED, dtype=dtype)
    actual, refused = child.attempt(engine, lambda: result_of(opened(engine, plain_model(dtype)), arrays))
    if actual is None:
        assert_a_line(refused)
    else:
        assert_right(engine, arrays, actual, dtype)


def with_far_factor(folder: Path) -> onnx.ModelProto:
    """The attention with its factor as a matrix in a data file: times the identity, scaled."""
    proto = plain_model()
    identity = np.eye(8, dtype=np.float32) * np.float32(8**-0.5)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(identity, "widened"))
    scale = helper.make_node("MatMul", ["Q", "widened"], ["near"], name="near")
    proto.graph.node.insert(0, scale)
    proto.graph.node[2].input[0] = "near"
    one = next(value for value in proto.graph.initializer if value.name == "factor")
    one.CopyFrom(helper.make_tensor("factor", TensorProto.FLOAT, [], [1.0]))
    path = str(folder / "model.onnx")
    onnx.save_model(proto, path, save_as_external_data=True, location="far.bin", size_threshold=0)
    (folder / "apart").mkdir()
    (folder / "apart" / "model.onnx").write_bytes(Path(path).read_bytes())
    return onnx.load(path, load_external_data=False)


def is_a_compiler(event: list[str]) -> bool:
    """gcc, IREE's own program, which is part of its package, or Node with a file of ours."""
    name, *words = event
    program = json.dumps(words)
    return name == "subprocess.Popen" and bool(re.search(r"\bgcc\b|iree[-.]|engines/javascript_worker\.mjs", program))
