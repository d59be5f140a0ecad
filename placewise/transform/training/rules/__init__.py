"""The gradient rule of every kind of op, by family.

Three forms. Some kinds have a gradient made of ONNX ops (a product's gradients are products). Most have one fused op
``gradient::Kind``, as libraries do. It reads, at positions 0 … m − 1, the gradients of the forward op's m results, at
m … m + n − 1 of its n arguments those that the gradient needs, then of its results those that the gradient needs; what
it does not need is left out, and so need not be kept. The attributes are the forward op's, and `layout` = (m, n), and
`wrt`, the arguments whose gradients are the results, in this order. Kinds without any rule, also those of other
formats, get such an op that reads all arguments.
"""
