"""Reports of saturation: tables, small multiples and findings.

It shows what `core.saturation` computes and measures nothing.
"""
