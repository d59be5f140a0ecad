"""What ops cost: FLOPs and bytes from shapes, seconds from FLOPs, bytes and a cluster."""
