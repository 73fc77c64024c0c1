"""Find attention in a graph and read every dialect into the canonical form; one module per dialect.

Writes no forms: `graph.lower` does.
"""
