"""`bench`: which arms, sizes and baseline a user asked for, and whether the timed numbers are right.

One comparison for each set of sizes.
Starts no process itself.
"""
