"""Limits of axes: what a text says, which sizes obey, and sizes that are changed until they do."""

import itertools

import pytest

from sdpa_onnx.core.attention.axis_limits import (
    AxisLimit,
    broken_limit,
    edge_sizes,
    fit_sizes,
    limits_of_axis,
    read_expression,
)


@pytest.mark.parametrize(
    ("text", "names", "value"),
    [
        ("x", ("x",), 7),
        ("32 - x", ("x",), 25),
        ("4*images", ("images",), 12),
        ("x + 2*images + 1", ("x", "images"), 14),
        ("-x + 2*(images + x)", ("x", "images"), 13),
        ("(x + 3)//4", ("x",), 2),
        ("x % 4", ("x",), 3),
        ("Mod(x + 1, 3)", ("x",), 2),
        ("Mod(x, images)", ("Mod(x, images)",), 9),
        ("Max(x, images)", ("x", "images"), 7),
        ("5", ("5",), 9),
        ("2*3", ("2*3",), 9),
        ("p2o.DynamicDimension.0", ("p2o.DynamicDimension.0",), 9),
        ("x / 2", ("x / 2",), 9),
        ("x // 0", ("x // 0",), 9),
        ("f(x)", ("f(x)",), 9),
        ("batch size", ("batch size",), 9),
        ("True", ("True",), 9),
        ("x+" * 150 + "x", ("x+" * 150 + "x",), 9),
    ],
)
def test_expression(text: str, names: tuple[str, ...], value: int) -> None:
    """Whole-number arithmetic has the axes in it; every other text is one axis."""
    expression = read_expression(text)
    assert expression.names == names
    sizes = {"x": 7, "images": 3}
    assert expression.at(sizes if set(names) <= set(sizes) else {names[0]: 9}) == value


def test_expression_is_solved_for_one_axis() -> None:
    """The size of the axis that is unknown, if it is a whole number and the only one."""
    assert read_expression("4*images").solved(8, {}) == {"images": 2}
    assert read_expression("32 - x").solved(22, {}) == {"x": 10}
    assert read_expression("x + y").solved(9, {"x": 4}) == {"y": 5}
    for text, value in (("4*images", 9), ("x + y", 9), ("x - x", 3), ("x", -1), ("(x + 3)//4", 3)):
        assert read_expression(text).solved(value, {}) == {}


@pytest.mark.parametrize(
    ("limit", "text", "allowed"),
    [
        (AxisLimit(size="x", smallest=2, largest=5), "2 <= x <= 5", [2, 3, 4, 5]),
        (AxisLimit(size="x", largest=3), "x <= 3", [0, 1, 2, 3]),
        (AxisLimit(size="x", smallest=18), "x >= 18", [18, 19, 20]),
        (AxisLimit(size="x", step=16, offset=2), "x = 16*n + 2", [2, 18]),
        (AxisLimit(size="x", smallest=4, largest=12, step=4), "4 <= x <= 12, x = 4*n", [4, 8, 12]),
        (AxisLimit(size="4 - x"), "4 - x >= 0", [0, 1, 2, 3, 4]),
        (AxisLimit(size="x + 2*x", largest=9), "x + 2*x <= 9", [0, 1, 2, 3]),
    ],
)
def test_limit_at_its_edges(limit: AxisLimit, text: str, allowed: list[int]) -> None:
    """The condition that is printed is the one that is obeyed."""
    assert str(limit) == text
    assert [size for size in range(21) if limit.allows({"x": size})] == allowed
    assert limit.allows({"y": 1})


@pytest.mark.parametrize(
    "limits",
    [
        [AxisLimit(size="x", smallest=2, largest=40)],
        [AxisLimit(size="x", step=16, offset=2), AxisLimit(size="x", smallest=18, largest=98)],
        [AxisLimit(size="32 - x")],
        [AxisLimit(size="x + y", largest=32)],
        [AxisLimit(size="x + y", largest=32), AxisLimit(size="x", step=4), AxisLimit(size="y", smallest=3)],
        [AxisLimit(size="x", smallest=200)],
    ],
)
def test_sizes_that_fit(limits: list[AxisLimit]) -> None:
    """Whatever is chosen, the result obeys; what obeys already stays."""
    for x, y in itertools.product((1, 2, 13, 64, 31, 97, 128), repeat=2):
        fitted = fit_sizes(limits, {"x": x, "y": y})
        assert broken_limit(limits, fitted) is None
        assert broken_limit(limits, {"x": x, "y": y}) is not None or fitted == {"x": x, "y": y}


def test_fitted_sizes_stay_different() -> None:
    """Sizes above the largest are folded, so that not every run is at the edge; a kept axis stays."""
    limits = [AxisLimit(size="x", largest=40)]
    assert len({fit_sizes(limits, {"x": size})["x"] for size in (1, 2, 13, 64, 31, 97, 5, 128)}) > 5
    both = [AxisLimit(size="x + y", largest=32)]
    assert fit_sizes(both, {"x": 30, "y": 30}, keep=("y",)) == {"x": 2, "y": 30}
    assert fit_sizes(both, {"x": 32, "y": 64}, keep=("x",)) == {"x": 32, "y": 0}
    assert fit_sizes(both, {"x": 99, "y": 1}, keep=("x", "y")) == {"x": 99, "y": 1}


def test_a_difference_limits_its_axes() -> None:
    """A file with an axis of 32 - x allows an x up to 32; a sum or a name limits nothing."""
    texts = {
        "32 - x": "x <= 32",
        "33 - 2*x": "x <= 16",
        "-x + 4": "x <= 4",
        "y - x": "y - x >= 0",
        "x - 2": "x - 2 >= 0",
    }
    assert {text: str(*limits_of_axis(text, "a file")) for text in texts} == texts
    assert not limits_of_axis("past + new", "x")
    assert not limits_of_axis("a-b.c", "x")


@pytest.mark.parametrize("wrong", [{"step": 0}, {"smallest": 5, "largest": 4}])
def test_limit_that_allows_nothing(wrong: dict[str, int]) -> None:
    """It cannot be made."""
    with pytest.raises(ValueError, match="'x'"):
        AxisLimit(size="x", **wrong)  # type: ignore[arg-type]  # parametrized


@pytest.mark.parametrize(
    ("limit", "values"),
    [
        (AxisLimit(size="x", smallest=3, largest=300), [3, 4, 299, 300]),
        (AxisLimit(size="x", largest=1), [1]),
        (AxisLimit(size="x", step=4), [4, 8]),
        (AxisLimit(size="x", step=16, offset=2, largest=100), [2, 18, 82, 98]),
        (AxisLimit(size="x - y"), [0, 1]),
        (AxisLimit(size="x + y", largest=32), [31, 32]),
        (AxisLimit(size="x", largest=5000), []),
    ],
)
def test_edges(limit: AxisLimit, values: list[int]) -> None:
    """Both ends and the value next to each, up to the longest size that is run."""
    edges = edge_sizes([limit], {"x": 13, "y": 2}, longest=1024)
    assert [value for _, value, _ in edges] == values
    for _, value, sizes in edges:
        assert read_expression(limit.size).at(sizes) == value
        assert limit.allows(sizes)


def test_edges_obey_the_other_limits() -> None:
    """A value of one limit that another one excludes is left out."""
    limits = [AxisLimit(size="x", largest=10), AxisLimit(size="x", step=4)]
    assert sorted(sizes["x"] for _, _, sizes in edge_sizes(limits, {"x": 5}, longest=64)) == [4, 8]
