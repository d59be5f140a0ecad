"""pack: any placement that fits in memory, or the proof that none does. Class: `PackPlacer`."""
