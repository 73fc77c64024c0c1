"""Whether a node keeps its operator's rules: attributes of their types, as many inputs and outputs as it takes.

The rules are those of the installed onnx; operators that it does not know are left alone.
"""

from collections.abc import Iterable, Mapping

import onnx
from onnx.defs import OpSchema

__all__ = ["Opsets", "attribute_fault", "operator_fault", "opsets_of"]

Opsets = Mapping[str, int]

_A = onnx.AttributeProto
# The one field that an attribute of a type fills.
_FIELDS = {
    _A.FLOAT: "f",
    _A.INT: "i",
    _A.STRING: "s",
    _A.TENSOR: "t",
    _A.GRAPH: "g",
    _A.TYPE_PROTO: "tp",
    _A.FLOATS: "floats",
    _A.INTS: "ints",
    _A.STRINGS: "strings",
    _A.TENSORS: "tensors",
    _A.GRAPHS: "graphs",
    _A.TYPE_PROTOS: "type_protos",
}
# Absent means there is none; an absent number or text is 0 or empty to writers that leave out defaults.
_NEEDED = frozenset({"t", "g", "tp"})
_ABOUT = frozenset({"name", "type", "doc_string", "ref_attr_name"})


def opsets_of(imports: Iterable[onnx.OperatorSetIdProto]) -> Opsets | str:
    """Version by domain, "" for the default one, or what is wrong with them."""
    found: dict[str, int] = {}
    for entry in imports:
        domain = _domain(entry.domain)
        if found.setdefault(domain, entry.version) != entry.version:
            return f"it imports two versions of the operators of '{domain or 'ai.onnx'}'"
        if not 0 < entry.version < 2**31:
            return f"it imports version {entry.version} of the operators of '{domain or 'ai.onnx'}'"
    return found


def attribute_fault(attribute: onnx.AttributeProto, of_function: frozenset[str] | None) -> str | None:
    """What is wrong with an attribute, for a sentence that begins with its name.

    Args:
        attribute: The attribute.
        of_function: Attributes of the function around it; None outside of functions.
    """
    if attribute.ref_attr_name:
        if of_function is None:
            return "refers to an attribute of a function, and is in none"
        known = attribute.ref_attr_name in of_function
        return None if known else f"refers to '{attribute.ref_attr_name}', which the function does not have"
    field = _FIELDS.get(attribute.type)
    if field is None:
        known_type = attribute.type in _A.AttributeType.values()
        return f"is of the type {_A.AttributeType.Name(attribute.type) if known_type else attribute.type}"
    filled = {descriptor.name for descriptor, _ in attribute.ListFields()} - _ABOUT
    if filled - {field}:
        return f"is of type {_A.AttributeType.Name(attribute.type)}, but has {' and '.join(sorted(filled - {field}))}"
    return "has no content" if field in _NEEDED and field not in filled else None


def operator_fault(node: onnx.NodeProto, opsets: Opsets, own: frozenset[tuple[str, str]]) -> str | None:
    """What is wrong with a node, for a sentence that begins with its name.

    Args:
        node: The node.
        opsets: Versions of the operators, by domain.
        own: Domain and name of the model's functions.
    """
    if not node.op_type:
        return "has no operator"
    domain = _domain(node.domain)
    if (node.domain, node.op_type) in own or (domain, node.op_type) in own:
        return None
    if domain not in opsets:
        # onnxruntime writes its own operators without an import, and reads them.
        return None if domain else "is a standard operator, and the model imports no version of them"
    schema = _schema(node.op_type, domain, opsets[domain])
    return None if schema is None else _count_fault(node, schema) or _attributes_fault(node, schema)


def _schema(operator: str, domain: str, version: int) -> OpSchema | None:
    if not domain and version > onnx.defs.onnx_opset_version():
        return None  # newer than the installed onnx: what it allows is not known
    try:
        found = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found


def _count_fault(node: onnx.NodeProto, schema: OpSchema) -> str | None:
    for what, names, least, most, formal in (
        ("inputs", node.input, schema.min_input, schema.max_input, schema.inputs),
        ("outputs", node.output, schema.min_output, schema.max_output, schema.outputs),
    ):
        if not least <= len(names) <= most:
            wanted = f"{least}" if least == most else f"at least {least}" if len(names) < least else f"at most {most}"
            return f"has {len(names)} {what}, and takes {wanted}"
        if what == "inputs":
            for name, parameter in zip(names, formal, strict=False):
                if not name and parameter.option == OpSchema.FormalParameterOption.Single:
                    return f"lacks its input {parameter.name}"
    return None


def _attributes_fault(node: onnx.NodeProto, schema: OpSchema) -> str | None:
    given = {attribute.name: attribute for attribute in node.attribute}
    # Names that begin so are internal marks, to onnx's own check too.
    unknown = [name for name in given if name not in schema.attributes and not name.startswith("__")]
    if unknown:
        return f"has an attribute '{unknown[0]}', which its operator of this version does not have"
    for name, rule in schema.attributes.items():
        attribute = given.get(name)
        if attribute is None:
            if rule.required:
                return f"lacks its attribute '{name}'"
        elif _type(attribute.type) != (wanted := str(rule.type).rpartition(".")[2]):
            return f"has an attribute '{name}' of type {_type(attribute.type)} instead of {wanted}"
    return None


def _type(number: int) -> str:
    return str(_A.AttributeType.keys()[_A.AttributeType.values().index(number)])


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
