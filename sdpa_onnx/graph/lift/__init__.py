"""Attention in any dialect read into its canonical form; one dialect a file."""
