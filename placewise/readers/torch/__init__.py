"""PyTorch: modules with example inputs, exported programs and ``.pt2`` archives → graphs."""
