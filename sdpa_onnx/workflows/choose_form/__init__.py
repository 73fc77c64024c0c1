"""Choose the graph form of an attention for a runtime: probe it, find workarounds, and time the forms that are right.

A form is used only if the runtime is right on every probe of it. Does not write files.
"""
