"""Find what a runtime does wrong, make it as small as it gets, and pack it for a bug report."""
