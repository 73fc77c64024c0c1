"""What every report shares: labels, numbers as text, tables before layout, escaping, chart style.

Knows record fields, but no particular report.
No files are written here.
"""
