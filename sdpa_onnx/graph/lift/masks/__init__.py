"""Read masks: several combined into one, and what a mask hides by position (causality, windows), with a proof.

How values depend on positions is analysed in `graph.lift.index_paths`.
"""
