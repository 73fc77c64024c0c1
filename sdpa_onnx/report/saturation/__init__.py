"""Reports of saturation: tables, small multiples and findings.

Draws what `core.saturation` computed.
No measuring here.
"""
