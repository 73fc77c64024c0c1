"""The conformance report: matrix, findings, terminal text and one HTML page.

It shows the rows of `workflows.conformance` and judges none.
"""
