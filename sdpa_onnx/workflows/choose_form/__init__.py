"""Which graph form an attention gets: probes on a runtime, workarounds, and the fastest right form.

A form is trusted only after the runtime answered its probes.
Writes no file.
"""
