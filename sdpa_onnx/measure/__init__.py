"""Clocks, machine and schedule: how long a call takes, in a way that can be compared."""
