"""Run runtimes and functions in separate processes; a crash or a hang becomes a value or a `SessionError`.

A dead process never ends ours. Does not depend on attention.
"""
