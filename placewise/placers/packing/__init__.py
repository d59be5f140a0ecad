"""Bin packing: any placement that fits in memory, or the proof that there is none (`PackPlacer`)."""
