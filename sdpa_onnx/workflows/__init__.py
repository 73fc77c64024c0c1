"""One file per job of a user; the only room that joins graphs, runtimes and measurement."""
