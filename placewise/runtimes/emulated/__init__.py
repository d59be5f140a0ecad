"""The runtime `emulated`: a cluster that is not here, one process per device, paced by the cost table."""
