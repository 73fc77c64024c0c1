"""The jobs of a user, one folder each; the only room that joins graphs, runtimes and measurement.

A folder may import the folders below it in the layers contract of pyproject.toml.
No argument parsing and no formatting of reports.
"""
