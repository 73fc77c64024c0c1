"""Changes of a model that are made for many attentions: names that are free, and the order of the nodes."""

from collections.abc import Iterator

import onnx_ir as ir

from sdpa_onnx.graph.subgraphs import inputs_within

__all__ = ["GraphEdits", "sort_graph"]


class GraphEdits:
    """Looks through a model once for all attentions that are written, not once for each.

    Args:
        model: Its names are looked through now.

    Example:
        >>> edits = GraphEdits(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10))
        >>> edits.free_prefix("a/b"), edits.free_prefix("a/b"), edits.free_prefix("a")
        ('a/b', 'a/b_', 'a_')
    """

    def __init__(self, model: ir.Model) -> None:
        names = {name for node in model.graph.all_nodes() for name in _names(node)}
        names |= {value.name or "" for value in model.graph.inputs} | set(model.graph.initializers)
        self._taken = {start for name in names for start in _starts(name)}
        self._changed: list[ir.Graph] = []

    def free_prefix(self, prefix: str) -> str:
        """The prefix, made unique: no name begins with it and a slash."""
        while prefix in self._taken:
            prefix += "_"
        self._taken.update(_starts(f"{prefix}/"))
        return prefix

    def inserted_in(self, graph: ir.Graph) -> None:
        """Remember that nodes were inserted, which may read what is computed after them."""
        if all(graph is not other for other in self._changed):
            self._changed.append(graph)

    def sort(self) -> None:
        """Sort the graphs that were changed topologically, where they are not."""
        for graph in self._changed:
            sort_graph(graph)
        self._changed.clear()


def _names(node: ir.Node) -> list[str]:
    return [node.name or "", *(value.name or "" for value in node.outputs)]


def _starts(name: str) -> Iterator[str]:
    """What lies before each slash of a name."""
    end = name.find("/")
    while end >= 0:
        yield name[:end]
        end = name.find("/", end + 1)


def sort_graph(graph: ir.Graph) -> None:
    """Sort a graph topologically, if it is not; the order of one that is sorted stays."""
    if not _is_ordered(graph):
        graph.sort()


def _is_ordered(graph: ir.Graph) -> bool:
    """Whether the graph is topologically sorted, including what subgraphs read."""
    seen: set[ir.Node] = set()
    for node in graph:
        read = (value.producer() for value in inputs_within(node))
        if any(made is not None and made.graph is graph and made not in seen for made in read):
            return False
        seen.add(node)
    return True
