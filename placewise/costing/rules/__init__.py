"""Cost rules by family of op: tables from kind to a function of one `OpInstance`.

FLOPs: a multiplication with addition is two, every other arithmetic operation one, also a division, a
square root or an exponential. A bias is where an accumulator starts and costs nothing.
"""
