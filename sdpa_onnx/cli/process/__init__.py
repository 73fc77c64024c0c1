"""Processes of a command: Ctrl-C and crashes in native code, and the workers that one command shares.

What a command does is not known here.
"""
