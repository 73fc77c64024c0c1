"""Every place that calls an output wrong, with the bound or the exact fact that proves it; a limit that is no proof is
suspicious."""

import ast
from collections.abc import Iterator
from pathlib import Path

import sdpa_onnx

# Module and function -> what proves it. A new place needs a line here, with its proof.
_PROOFS = {
    ("core/judge/agreement.py", "judge"): "shape",
    ("core/judge/agreement.py", "_verdict"): "outside the proven bound, NaN for a number, a number for a NaN",
    ("core/judge/cache_agreement.py", "judge_cache"): "shape: the output cannot hold keys and values",
    ("core/judge/cache_agreement.py", "judge_copy"): "shape and type; equality of copied bits",
    ("core/judge/node_rule.py", "_judge_integers"): "equality of integers that one rounding does not change",
    ("core/judge/node_rule.py", "_conclude"): "the proven bound of a sum or of one rounding, passed as `proven`",
    ("core/judge/node_rule.py", "_wrong"): "shape, type, NaN or infinity for a number",
    ("core/judge/output_rule.py", "judge"): "shape, NaN or infinity for a number of PyTorch or the reverse",
    ("core/judge/output_rule.py", "_judge_exact"): "equality of integers that one rounding does not change",
    ("core/judge/qk_agreement.py", "judge_qk"): "shape; the proven bound of the scores, NaN for a number",
    ("core/records/findings.py", "_verdict"): "the verdict of the worst record of the finding",
    ("workflows/check/module_output_check.py", "judge"): "number of outputs",
    ("workflows/check/output_check.py", "judge_output"): "shape and type, equality of integers, NaN for a number",
    ("workflows/compare/judge.py", "_verdict_of"): "the contradictions that verify found",
    ("workflows/conformance/trials.py", "_check_finding"): "equality of bits: two runs, or inputs that were changed",
    ("workflows/convert/reading_check.py", "_agreement"): "shape: the values do not form the attention that was read",
    ("workflows/reduce/sequence.py", "_result"): "the verdict of the record that is reduced, which has its own proof",
    ("workflows/verify/session_state.py", "sentence"): "the verdict of the record that it describes",
    ("workflows/verify/session_state.py", "fault"): "bits of an output that change after it was returned",
    ("workflows/verify/verify_file.py", "contradiction_records"): "a fact of the node that the metadata denies",
    ("workflows/verify/verify_model.py", "_judge_shapes"): "shape that the graph declares",
}


def _given(tree: ast.AST) -> Iterator[str]:
    """Functions that give the verdict wrong; those that only compare with it are left out."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        compared = {
            id(part)
            for node in ast.walk(function)
            if isinstance(node, ast.Compare | ast.Tuple | ast.Set | ast.MatchValue)
            for part in ast.walk(node)
        }
        nested = {
            id(part)
            for inner in ast.walk(function)
            if isinstance(inner, ast.FunctionDef) and inner is not function
            for part in ast.walk(inner)
        }
        if any(
            isinstance(node, ast.Attribute) and node.attr == "WRONG" and ast.unparse(node) == "Verdict.WRONG"
            for node in ast.walk(function)
            if id(node) not in compared | nested
        ):
            yield function.name


def test_every_verdict_wrong_has_a_proof() -> None:
    """The places are those of the table, no more and no fewer."""
    root = Path(sdpa_onnx.__file__).parent
    found = {
        (path.relative_to(root).as_posix(), name)
        for path in root.rglob("*.py")
        for name in _given(ast.parse(path.read_text()))
        if path.relative_to(root).parts[0] != "report"
    }
    assert found == set(_PROOFS)
