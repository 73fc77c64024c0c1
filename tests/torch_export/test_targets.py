"""TARGET texts: the modules that they build, and every error, compared as whole texts."""

from pathlib import Path

import pytest
import torch

from sdpa_onnx.catalog import entry_names
from sdpa_onnx.errors import ExportError, PlanError
from sdpa_onnx.torch_export.modules import FOUNDING_USES
from sdpa_onnx.torch_export.target_text import parse_target
from sdpa_onnx.torch_export.targets import resolve_target

_FILE = """
import torch
from torch import nn
from neighbour import WIDTH

class Block(nn.Module):
    def __init__(self, width=WIDTH, *, heads=2):
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide {width}")
        self.width, self.heads = width, heads
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x * self.weight

    def sample_inputs(self):
        return (torch.randn(2, 3, self.width),)

class Bare(nn.Module):
    def forward(self, x):
        return x

class Broken(Bare):
    def sample_inputs(self):
        return 1 / 0

class Odd(Bare):
    sample_inputs = "text"

def make(width=4):
    return Block(width)

def number():
    return 3

ready = Block(6)
Plain = dict
size = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "layers.py").write_text(_FILE)
    (tmp_path / "neighbour.py").write_text("WIDTH = 4\n")
    (tmp_path / "declared.py").write_text(
        "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def forward(self, x): return x\n"
        "sample_inputs = {'x': torch.zeros(2, 3)}\n"
    )
    (tmp_path / "faulty.py").write_text("import torch\nraise RuntimeError('no weights')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FOUNDING_USES)
def test_our_three_uses(name: str) -> None:
    """Each of the three uses resolves by its name, with its sample inputs."""
    target = resolve_target(name)
    assert target.name == name
    assert target.module(*target.sample_inputs).shape == (2, 10, 512)


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("layers.py:Block", 4),
        ("layers.py:Block()", 4),
        ("layers.py:Block(8, heads=4)", 8),
        ("layers.py:make", 4),
        ("layers.py:make(10)", 10),
        ("layers.py:ready", 6),
        ("./layers.py:Block", 4),
        ("layers:Block(width=6, heads=3)", 6),
    ],
)
def test_class_factory_instance(folder: Path, text: str, width: int) -> None:
    """A class, a function or an instance, in a file or a module, with literals, with its own sample inputs."""
    target = resolve_target(text)
    assert isinstance(target.sample_inputs, tuple)
    (sample,) = target.sample_inputs
    assert isinstance(sample, torch.Tensor)
    assert sample.shape == (2, 3, width)
    assert target.module(sample).shape == (2, 3, width)


def test_sample_beside_the_class(folder: Path) -> None:
    """A module-level dict of the file provides the sample inputs."""
    sample = resolve_target("declared.py:Net").sample_inputs
    assert isinstance(sample, dict)
    assert list(sample) == ["x"]


def test_shapes_replace_the_sample(folder: Path) -> None:
    """With shapes, random tensors of those shapes and types are drawn."""
    sample = resolve_target(
        "layers.py:Block", shapes={"x": ((1, 2, 4), "float16"), "ids": ((3,), "int64"), "mask": ((2, 2), "bool")}
    ).sample_inputs
    assert isinstance(sample, dict)
    tensors = {name: value for name, value in sample.items() if isinstance(value, torch.Tensor)}
    assert {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()} == {
        "x": ((1, 2, 4), torch.float16),
        "ids": ((3,), torch.int64),
        "mask": ((2, 2), torch.bool),
    }


def test_weights_are_the_same_each_time(folder: Path) -> None:
    """Random weights of a constructor are seeded, and the caller's random state is unchanged."""
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (resolve_target("layers.py:Block").module.state_dict()["weight"] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("encoder-slef", "'encoder-slef' is not a target. Did you mean 'encoder-self'?"),
        (
            "whatever",
            (
                "'whatever' is not a target. "
                "Give package.module:Class, file.py:Class, or one of encoder-self, decoder-self, encoder-decoder, "
                f"sdpa, {', '.join(entry_names())}."
            ),
        ),
        ("missing.py:Block", "There is no file missing.py."),
        ("no_such_package.layers:Block", "There is no module 'no_such_package.layers'. Install it, or name a file."),
        ("layers.py:Blok", "layers.py has no 'Blok'. Did you mean 'Block'?"),
        ("layers.py:Zzz", "layers.py has no 'Zzz'."),
        (
            "layers.py:Block(width)",
            (
                "The arguments in 'layers.py:Block(width)' cannot be read. "
                "Give literals only: numbers, strings, True, False, None, tuples, lists, dicts."
            ),
        ),
        (
            "layers.py:Block(4",
            (
                "The arguments in 'layers.py:Block(4' cannot be read. "
                "Give literals only: numbers, strings, True, False, None, tuples, lists, dicts."
            ),
        ),
        ("layers.py:ready(3)", "'ready' in layers.py is a module instance and has no arguments."),
        (
            "layers.py:Bare",
            (
                "layers.py:Bare has no sample inputs. Define sample_inputs (a tuple or dict of tensors, "
                "or a function that returns one) in the class or the file, or give --shape, such as "
                "--shape x=2x16x96."
            ),
        ),
        ("layers.py:Odd", "sample_inputs of layers.py:Odd is of type str. Give a tuple or dict of tensors."),
    ],
)
def test_wrong_plans(folder: Path, text: str, expected: str) -> None:
    """The error for a target that does not exist suggests the nearest name."""
    with pytest.raises(PlanError) as caught:
        resolve_target(text)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "layers.py:Block(5)",
            (
                "Block of layers.py cannot be built: ValueError: 2 heads do not divide 5 at layers.py:10: "
                '`raise ValueError(f"{heads} heads do not divide {width}")`.'
            ),
        ),
        (
            "layers.py:Broken",
            (
                "sample_inputs of layers.py:Broken raised ZeroDivisionError: division by zero at layers.py:26: "
                "`return 1 / 0`."
            ),
        ),
        ("layers.py:Plain", "'Plain' in layers.py is not a torch.nn.Module."),
        ("layers.py:size", "'size' in layers.py is of type int, not a torch.nn.Module."),
        ("layers.py:number", "number of layers.py returns a value of type int, not a torch.nn.Module."),
        (
            "faulty.py:Net",
            (
                "faulty.py cannot be imported: RuntimeError: no weights at faulty.py:2: "
                "`raise RuntimeError('no weights')`."
            ),
        ),
    ],
)
def test_targets_that_raise(folder: Path, text: str, expected: str) -> None:
    """Exceptions of the user's code are reported with the source line."""
    with pytest.raises(ExportError) as caught:
        resolve_target(text)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        (
            (2,),
            "float8",
            (
                "The input 'x' has the unknown dtype 'float8'. "
                "Known: float64, float32, float16, bfloat16, int64, int32, bool."
            ),
        ),
        ((2, -1), "float32", "The input 'x' has the shape (2, -1); sizes must be 0 or more."),
    ],
)
def test_wrong_shapes(folder: Path, shape: tuple[int, ...], dtype: str, expected: str) -> None:
    """An unknown dtype or a negative size is refused."""
    with pytest.raises(PlanError) as caught:
        resolve_target("layers.py:Block", shapes={"x": (shape, dtype)})
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("text", "arguments"),
    [("needs.py:Needs", True), ("needs.py:Fails", False), ("needs.py:Inside", False), ("needs.py:Needs()", False)],
)
def test_arguments_are_suggested_where_some_are_missing(folder: Path, text: str, arguments: bool) -> None:
    """A constructor that raises for another reason, a TypeError included, gets no such hint."""
    (folder / "needs.py").write_text(
        "from torch import nn\n"
        "class Needs(nn.Module):\n    def __init__(self, width):\n        super().__init__()\n"
        "class Fails(nn.Module):\n    def __init__(self):\n        raise RuntimeError('boom')\n"
        "class Inside(nn.Module):\n    def __init__(self, width=3):\n        len(width)\n"
    )
    with pytest.raises(ExportError) as caught:
        resolve_target(text)
    assert ("Write arguments after the name: Needs(512, heads=8)." in str(caught.value)) is arguments
    assert ("Write arguments" in str(caught.value)) is arguments


@pytest.mark.parametrize("stem", ["mö'\"<b>", "two.dots", "模型", "two file:x"])
def test_any_file_name(folder: Path, stem: str) -> None:
    """A file is imported under a name that other processes can import too, whatever its own name is."""
    (folder / f"{stem}.py").write_text(_FILE, encoding="utf-8")
    module = type(resolve_target(f"{stem}.py:Block").module).__module__
    assert module.isidentifier()
    assert module.isascii()


def test_paths_with_a_colon() -> None:
    """The last colon before the arguments is the separator, so drive letters and strings with colons work."""
    parsed = parse_target("C:\\models\\net.py:Net('a:b')", known=())
    assert (parsed.where, parsed.name, parsed.args) == ("C:\\models\\net.py", "Net", ("a:b",))
    assert parsed.is_file
