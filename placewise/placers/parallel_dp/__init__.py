"""Pipelines whose stages are split over devices, repeated and recomputed (Piper, Tarnawski et al., NeurIPS 2021).

`ParallelDpPlacer` is exact over ideals. The devices of a stage are chosen in `assign_devices`, afterwards.
"""
