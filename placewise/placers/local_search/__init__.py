"""Local search at the speed of compiled code.

`LocalPlacer` anneals max-load; `TemperPlacer` searches for latency by parallel tempering.
"""
