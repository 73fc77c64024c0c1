"""Reports: pure functions of records and a run header to text, tables, charts and files.

One folder for each report, one file for each format; seconds and shares are scaled and rounded only here.
Runs nothing and decides nothing.
"""
