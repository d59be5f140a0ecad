"""PyTorch: torch.export programs that run piece by piece, as lanes of one process or as stages in several."""
