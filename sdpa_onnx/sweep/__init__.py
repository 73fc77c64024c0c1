"""Suites: a TOML file is planned as jobs, and the jobs write records into a run folder."""
