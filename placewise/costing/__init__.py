"""Costs of ops: FLOPs and bytes from shapes, then seconds from FLOPs, bytes and a cluster."""
