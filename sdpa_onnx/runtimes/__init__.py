"""Programs that execute models, one file each, found by entry point."""
