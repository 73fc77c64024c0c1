"""Programs that execute models, one file each, found by entry point, and the worker processes they run in.

A runtime loads a model, runs it, and reports what ran and in which precision.
Judges nothing and times nothing.
"""
