"""Reports: pure functions that turn records and a run header into text, tables, charts and files.

Each report has a folder; each format has a file. Seconds and shares are scaled and rounded only here.
This package runs nothing and decides nothing.
"""
