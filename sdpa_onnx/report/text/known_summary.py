"""One sentence that counts new and known findings of a run; decides nothing."""

from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["known_summary"]


def known_summary(found: SortedFindings) -> str:
    """Count new, known and vanished findings; changed findings and unused entries only if there are any."""
    known = len({id(record) for _, records in found.known for record in records})
    parts = [f"{len(found.new)} new", f"{known} known", f"{len(found.vanished)} vanished"]
    parts += [f"{len(found.changed)} changed"] if found.changed else []
    if found.unused:
        parts.append(f"{len(found.unused)} unused")
    return f"Compared with the known findings: {', '.join(parts)}."
