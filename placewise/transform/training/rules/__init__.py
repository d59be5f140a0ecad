"""Gradient rules for every kind of op, by family.

Rules have three forms. Some gradients consist of ONNX ops (a product's gradients are products). Most are one fused op
``gradient::Kind``, as in libraries. Its arguments 0 … m − 1 are the gradients of the forward op's m results; m … m + n
− 1 are those of its n arguments that the gradient needs, followed by the results that it needs. What it does not need
is left out, and so need not be kept. Its attributes are the forward op's, `layout` = (m, n), and `wrt`, the arguments
whose gradients are its results, in this order. Kinds without a rule, also those of other formats, get such an op that
reads all arguments.
"""
