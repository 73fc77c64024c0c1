"""Reports of a comparison of BASE and HEAD (terminal, Markdown, JUnit), and of a history of runs.

All formats share the sentence and the tables of `gate_report`.
No gate is decided here.
"""
