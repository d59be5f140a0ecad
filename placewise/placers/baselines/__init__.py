"""What people do without a search.

`SinglePlacer` uses the best single device; `BalancedPlacer` splits by memory, as Accelerate's device map does;
`GreedyPlacer` fills one device after the other; `ExpertPlacer` cuts layers in a row, as a person would; `UniformPlacer`
makes pipelines of equal stages whose ops may be split. `RandomPlacer` draws or deals blocks, as a trivial baseline.
"""
