"""The dynamic program over ideals for contiguous pipelines (Tarnawski et al. 2020), and its relatives.

`DpPlacer` is exact; `DplPlacer` splits one line of ops; `PipeDreamPlacer` contracts first (Narayanan et al. 2019);
`InOrderPlacer` keeps the order of the devices; `MaxLoadDpPlacer` takes the best pipeline for latency.
"""
