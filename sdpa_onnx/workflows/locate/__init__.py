"""Find the first node of a model that introduces an error."""
