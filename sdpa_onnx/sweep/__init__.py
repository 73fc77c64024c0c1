"""Suites: a TOML file is planned as jobs, and the jobs write records into a run folder.

`store` is the only reader and writer of run folders.
Renders no report.
"""
