"""Read the nodes between the two products of decomposed attention: scores before the softmax, weights behind it.

The products themselves are read in `graph.lift.products`, masks among the scores in `graph.lift.masks`.
"""
