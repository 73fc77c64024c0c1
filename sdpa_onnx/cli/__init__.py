"""The command line: one file for each command; arguments in, exit code out.

Options are parsed into types here, and messages go to stderr.
No decisions: a command calls `workflows` or `sweep`, then `report`.
"""
