"""Cost rules by family of op: tables from kind to a function of one `OpInstance`.

FLOPs: a multiply-add counts as two, any other arithmetic operation as one, also a division, a square root or an
exponential. A bias initializes the accumulator and is free.
"""
