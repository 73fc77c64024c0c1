"""Runtimes in a process of their own: when a model runs there, and what a crash or hang becomes.

A dead process is a value or a `SessionError`, never the end of ours.
Knows no attention.
"""
