"""ATen operators → kinds: names, positions and attributes of ONNX, if ONNX has the op.

Other operators keep their names (``aten::histc``, ``mylib::op``) and the argument order of their schemas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewise.readers.torch.op_specs import CallSite, Converter, OpSpec, convert_to, make_spec
from placewise.readers.torch.shape_dependent import SHAPE_DEPENDENT
from placewise.readers.torch.traced_program import TensorMeta, TracedCall, refs_in

_SAME_ORDER = {
    "Add": "add __add__ __iadd__", "Sub": "sub subtract rsub", "Mul": "mul multiply",
    "Div": "div divide true_divide floor_divide",
    "Mod": "remainder fmod", "Neg": "neg negative", "Abs": "abs absolute", "Sign": "sign sgn", "Exp": "exp",
    "Log": "log log2 log10 log1p", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Pow": "pow", "Erf": "erf",
    "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh",
    "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Tanh": "tanh", "Sigmoid": "sigmoid",
    "Relu": "relu", "Clip": "clamp clip clamp_min clamp_max hardtanh relu6", "Gelu": "gelu", "Swish": "silu",
    "Mish": "mish", "Elu": "elu", "Selu": "selu", "Celu": "celu", "LeakyRelu": "leaky_relu rrelu",
    "HardSigmoid": "hardsigmoid", "HardSwish": "hardswish", "Softplus": "softplus", "Softsign": "softsign",
    "Shrink": "hardshrink softshrink", "ThresholdedRelu": "threshold", "Ceil": "ceil", "Floor": "floor",
    "Round": "round", "Equal": "eq", "Greater": "gt greater", "GreaterOrEqual": "ge greater_equal", "Less": "lt less",
    "LessOrEqual": "le less_equal", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "Not": "logical_not", "BitwiseAnd": "bitwise_and __and__ __iand__", "BitwiseOr": "bitwise_or __or__ __ior__",
    "BitwiseXor": "bitwise_xor __xor__", "BitwiseNot": "bitwise_not",
    "BitShift": "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__", "IsNaN": "isnan", "IsInf": "isinf",
    "Max": "maximum fmax", "Min": "minimum fmin",
    "Bernoulli": "bernoulli", "Multinomial": "multinomial", "RandomNormal": "randn normal",
    "RandomNormalLike": "randn_like", "RandomUniform": "rand uniform randint randperm",
    "RandomUniformLike": "rand_like randint_like",
    "ReduceMin": "amin all", "ReduceProd": "prod", "ReduceLogSumExp": "logsumexp",
    "ReduceL2": "linalg_vector_norm norm linalg_norm", "LpNormalization": "normalize",
    "ArgMax": "argmax", "ArgMin": "argmin", "CumSum": "cumsum", "CumProd": "cumprod", "NonZero": "nonzero",
    "Unique": "unique _unique2 unique_dim unique_consecutive", "Det": "linalg_det det",
    "MatMul": "matmul mm bmm mv dot vdot linalg_matmul _grouped_mm _scaled_mm _weight_int4pack_mm "
              "_weight_int8pack_mm",
    "MatMulInteger": "_int_mm",
    "Tile": "repeat tile repeat_interleave", "Trilu": "tril triu", "OneHot": "one_hot", "EyeLike": "eye",
    "DepthToSpace": "pixel_shuffle", "SpaceToDepth": "pixel_unshuffle", "Col2Im": "col2im", "Compress": "masked_select",
    "Pad": "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
           "replication_pad3d _pad_circular",
    "ScatterElements": "scatter scatter_add scatter_reduce index_add index_copy index_fill slice_scatter "
                       "select_scatter diagonal_scatter as_strided_scatter",
    "ScatterND": "index_put masked_scatter",
    "AffineGrid": "affine_grid_generator",
    "GroupNormalization": "group_norm native_group_norm",
    "NegativeLogLikelihoodLoss": "nll_loss nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward",
    "SoftmaxCrossEntropyLoss": "cross_entropy_loss",
}  # fmt: skip
"""Kind → ATen names of ops with the argument order of ONNX, or one that costs the same."""

_REORDERED: Mapping[str, Converter] = {
    "addmm": convert_to("Gemm", "mat1", "mat2", "self"),
    "addmv": convert_to("Gemm", "mat", "vec", "self"),
    "addbmm": convert_to("aten::addbmm", "batch1", "batch2", "self"),
    "baddbmm": convert_to("Gemm", "batch1", "batch2", "self"),
    "linear": convert_to("Gemm", "input", "weight", "bias", transB=1),
    "inner": convert_to("MatMul", "self", "other", transB=1),
    "einsum": convert_to("Einsum"),
    "embedding": convert_to("Gather", "weight", "indices"),
    "index_select": convert_to("Gather", "self", "index"),
    "index": convert_to("GatherND", "self", "indices"),
    "_unsafe_index": convert_to("GatherND", "self", "indices"),
    "take": convert_to("GatherND", "self", "index"),
    "gather": convert_to("GatherElements", "self", "index"),
    "take_along_dim": convert_to("GatherElements", "self", "indices"),
    "masked_fill": convert_to("Where", "mask", "value", "self"),
    "layer_norm": convert_to("LayerNormalization", "input", "weight", "bias"),
    "native_layer_norm": convert_to("LayerNormalization", "input", "weight", "bias"),
    "rms_norm": convert_to("RMSNormalization", "input", "weight"),
    "_fused_rms_norm": convert_to("RMSNormalization", "input", "weight"),
    "instance_norm": convert_to("InstanceNormalization", "input", "weight", "bias"),
    "prelu": convert_to("PRelu", "self", "weight"),
    "_prelu_kernel": convert_to("PRelu", "self", "weight"),
}
"""ATen names with another argument order than ONNX."""

_TABLE: Mapping[str, Converter] = {
    **{name: convert_to(kind) for kind, names in _SAME_ORDER.items() for name in names.split()},
    **_REORDERED,
    **SHAPE_DEPENDENT,
}

_FOREIGN = {
    "quantized_decomposed::quantize_per_tensor": "QuantizeLinear",
    "quantized_decomposed::quantize_per_channel": "QuantizeLinear",
    "quantized_decomposed::quantize_per_token": "QuantizeLinear",
    "quantized_decomposed::dequantize_per_tensor": "DequantizeLinear",
    "quantized_decomposed::dequantize_per_channel": "DequantizeLinear",
    "quantized_decomposed::dequantize_per_token": "DequantizeLinear",
    "torchao::quantize_affine": "QuantizeLinear",
    "torchao::dequantize_affine": "DequantizeLinear",
    "higher_order::cond": "If",
    "higher_order::while_loop": "Loop",
    "higher_order::scan": "Scan",
    "higher_order::map_impl": "Scan",
}
"""Operators of other namespaces with an ONNX equivalent."""

_SKIPPED = """_assert_async _assert_tensor_metadata _assert_scalar _functional_assert_async _functional_assert_scalar
    sym_constrain_range sym_constrain_range_for_size _functional_sym_constrain_range _print
    _functional_sym_constrain_range_for_size sym_size sym_stride sym_numel sym_storage_offset sym_is_contiguous"""
SKIPPED = frozenset(f"aten::{name}" for name in _SKIPPED.split())
"""Assertions and size queries, which are not ops."""


def convert_call(call: TracedCall, metas: Mapping[str, TensorMeta]) -> OpSpec:
    """The op for a call."""
    site = CallSite(call, metas)
    namespace, _, name = call.op.partition("::")
    if namespace == "aten":
        converter = _TABLE.get(name) or (_TABLE.get(name[:-1]) if is_in_place(name) else None)
        return make_spec(site, call.op) if converter is None else converter(site)
    return make_spec(site, _FOREIGN.get(call.op, call.op))


def is_in_place(name: str) -> bool:
    """Whether an ATen name (without namespace) is that of an in-place operator."""
    return name.endswith("_") and not name.startswith("__")


_ONLY_SHAPES = "squeeze_ unsqueeze_ t_ transpose_ swapaxes_ swapdims_ detach_ requires_grad_ as_strided_"


def written_values(target: str, arguments: Mapping[str, object], declared: Sequence[str] = ()) -> tuple[str, ...]:
    """The values that a call modifies: those of the `declared` arguments, else by the operator's name.

    Archives contain no schemas, so the name decides there: `add_` modifies its first argument.
    """
    namespace, _, name = target.partition(".")[0].partition("::")
    if name in _ONLY_SHAPES.split():
        return ()
    values = [arguments[item] for item in declared if item in arguments]
    if not values and namespace == "aten" and is_in_place(name):
        values = list(arguments.values())[:1]
    return tuple(dict.fromkeys(refs_in(values)))
