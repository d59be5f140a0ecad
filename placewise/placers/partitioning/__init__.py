"""Graph partitioning: balanced parts with little to send between them.

`PartitioningPlacer` uses METIS (Karypis and Kumar 1998) or the hypergraph partitioner Mt-KaHyPar.
"""
