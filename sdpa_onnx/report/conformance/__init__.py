"""The conformance report: matrix, findings, terminal text and one HTML page.

Shows rows of `workflows.conformance`.
Does not judge a row.
"""
