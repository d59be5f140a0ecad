"""From a model, devices and options to a checked result: open, build, place, split."""
