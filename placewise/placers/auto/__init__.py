"""auto: an anytime portfolio of the placers here. Class: `AutoPlacer`."""
