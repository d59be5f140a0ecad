"""Set cover: the max-load of free placements from above, by annealing, and from below, by sets that fit a device."""
