"""cpsat: constraint programs solved by OR-Tools' CP-SAT. Class: `CpsatPlacer`.

Throughput is the published integer program (Tarnawski et al. 2020); latency is a scheduling problem in each of the
three executions.
"""
