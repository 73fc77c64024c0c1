"""Reports of a comparison of BASE and HEAD: terminal, Markdown, JUnit; and of a history of runs.

One sentence and one table for all formats come from `gate_report`.
Decides no gate.
"""
