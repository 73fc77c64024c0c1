"""The report: pure functions of records and a run header, one file per format; never runs anything."""
