"""Graph partitioning: balanced parts with little to send between them.

`MetisPlacer` uses METIS (Karypis and Kumar 1998), `MincutPlacer` the hypergraph partitioner Mt-KaHyPar.
"""
