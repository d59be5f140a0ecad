"""Dynamic programs for contiguous pipelines (Tarnawski et al. 2020), and their relatives.

`DpPlacer` is exact over ideals, or splits one order of the ops; `PipeDreamPlacer` contracts first (Narayanan et al.
2019); `InOrderPlacer` keeps the order of the devices.
"""
