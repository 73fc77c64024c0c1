"""What all reports share: labels, numbers as text, tables before layout, escaping, chart style.

It knows record fields, but no particular report, and writes no files.
"""
