"""Suites: a TOML file becomes a plan of jobs, the jobs become records in a run folder."""
