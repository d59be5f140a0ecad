"""PyTorch: a torch.export program run piece by piece, in one process by lanes or in several by stages."""
