"""The canonical attention written in a form; one form a file."""
