"""Run random legal cases on a runtime, judge each, and group what is wrong."""
