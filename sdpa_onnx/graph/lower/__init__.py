"""Write a canonical attention in a graph form; one module per form.

Reads no dialects: `graph.lift` does.
"""
