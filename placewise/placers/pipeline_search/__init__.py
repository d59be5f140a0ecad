"""Training pipelines for the objective `step`: schedule, devices and cuts, chosen by simulation (`pipeline_search`).

The cuts start from even ones along several orders of the model, the throughput search's among them, and are moved while
the simulated step gets shorter.
"""
