"""Lower bounds, and cheap proofs that nothing fits."""
