"""Ops that ONNX Runtime adds to the standard, one by one: models of them, and the shapes that they make."""

import numpy as np
import onnx
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

_T = onnx.TensorProto
F, H, U8, I8, I32, I64, B = _T.FLOAT, _T.FLOAT16, _T.UINT8, _T.INT8, _T.INT32, _T.INT64, _T.BOOL


def ints(*values, dtype=np.int32):
    return np.array(values, dtype)


def scalar(value, dtype=np.float32):
    return np.array(value, dtype)


def of(dtype, *shape):
    """An input that is not float32."""
    return dtype, shape


S, Z, ZI = scalar(0.1), scalar(3, np.uint8), scalar(0, np.int8)
"""A scale and zero points."""
CACHE = (2, 4, 5, 8)

RUN = [
    ("Attention", [(2, 6, 32), (32, 96), (96,)], {"num_heads": 4}, 1),
    ("Attention", [(2, 6, 32), (32, 80), (80,)], {"num_heads": 4, "qkv_hidden_sizes": [32, 32, 16]}, 1),
    ("Attention", [(2, 1, 32), (32, 96), (96,), None, (2, 2, 4, 5, 8)], {"num_heads": 4, "unidirectional": 1}, 2),
    ("QAttention", [of(U8, 2, 6, 32), of(I8, 32, 96), (96,), S, S, None, Z, ZI], {"num_heads": 4}, 1),
    ("MultiHeadAttention", [(2, 6, 32), (2, 7, 32), (2, 7, 32)], {"num_heads": 4}, 1),
    ("MultiHeadAttention", [(2, 6, 32), (2, 7, 32), (2, 7, 16)], {"num_heads": 4}, 3),
    ("MultiHeadAttention", [(2, 6, 32), (2, 4, 7, 8), (2, 4, 7, 8)], {"num_heads": 4}, 1),
    ("MultiHeadAttention", [(2, 1, 32)] * 3 + [None] * 3 + [CACHE, CACHE], {"num_heads": 4}, 3),
    (
        "DecoderMaskedMultiHeadAttention",
        [(2, 1, 32)] * 3 + [None, None, CACHE, CACHE, ints(3)],
        {"num_heads": 4, "past_present_share_buffer": 1},
        3,
    ),
    (
        "GroupQueryAttention",
        [(2, 6, 32), (2, 6, 16), (2, 6, 16), None, None, ints(5, 5), ints(6)],
        {"num_heads": 4, "kv_num_heads": 2},
        3,
    ),
    (
        "GroupQueryAttention",
        [(1, 1, 64), None, None, (1, 2, 5, 8), (1, 2, 5, 8), ints(5), ints(6)],
        {"num_heads": 4, "kv_num_heads": 2},
        3,
    ),
    (
        "GroupQueryAttention",
        [(1, 1, 32), (1, 1, 16), (1, 1, 16), (1, 2, 12, 8), (1, 2, 12, 8), ints(5), ints(6)],
        {"num_heads": 4, "kv_num_heads": 2},
        3,
    ),
    ("RotaryEmbedding", [(2, 6, 32), ints(0, dtype=np.int64), (9, 4), (9, 4)], {"num_heads": 4}, 1),
    (
        "EmbedLayerNormalization",
        [ints([1, 2], [3, 4]), ints([0, 0], [1, 1]), (9, 32), (9, 32), (2, 32), (32,), (32,), ints([1, 1], [1, 0])],
        {},
        3,
    ),
    ("SkipLayerNormalization", [(2, 6, 32), (2, 6, 32), (32,), (32,), (32,)], {}, [0, 3]),
    ("SkipSimplifiedLayerNormalization", [(2, 6, 32), (2, 6, 32), (32,)], {}, [0, 3]),
    ("::SimplifiedLayerNormalization", [(2, 6, 32), (32,)], {}, 1),
    ("::LayerNormalization", [(2, 6, 32), (32,), (32,)], {}, 1),
    ("BiasGelu", [(2, 6, 32), (32,)], {}, 1),
    ("FastGelu", [(2, 6, 32), (32,)], {}, 1),
    ("QuickGelu", [(2, 6, 32)], {}, 1),
    ("Gelu", [(2, 6, 32)], {}, 1),
    ("FusedMatMul", [(2, 6, 32), (2, 7, 32)], {"transB": 1, "alpha": 0.5}, 1),
    ("FusedMatMul", [(6, 2, 32), (6, 32, 7)], {"transBatchA": 0, "transA": 0}, 1),
    ("FusedMatMul", [(6, 3, 2, 32), (3, 2, 32, 7)], {"transBatchA": 1}, 1),
    ("FusedGemm", [(6, 32), (7, 32), (7,)], {"transB": 1, "activation": "Relu"}, 1),
    ("DynamicQuantizeMatMul", [(2, 6, 32), of(I8, 32, 7), S, ZI], {}, 1),
    ("MatMulIntegerToFloat", [of(U8, 2, 6, 32), of(I8, 32, 7), S, S, Z, ZI], {}, 1),
    ("QGemm", [of(U8, 6, 32), S, Z, of(I8, 7, 32), S, ZI, None, S, Z], {"transB": 1}, 1),
    ("QGemm", [of(U8, 6, 32), S, Z, of(I8, 32, 7), S, ZI], {}, 1),
    ("MatMulNBits", [(2, 6, 32), of(U8, 7, 1, 16), (7,)], {"K": 32, "N": 7, "bits": 4, "block_size": 32}, 1),
    ("MatMulNBits", [(2, 6, 64), of(U8, 7, 2, 16), (7, 2)], {"K": 64, "N": 7, "bits": 4, "block_size": 32}, 1),
    ("GatherBlockQuantized", [of(U8, 9, 16), ints([1, 2], [3, 4]), (9, 1)],
     {"bits": 4, "block_size": 32, "quantize_axis": 1}, 1),
    ("FusedConv", [(1, 3, 9, 9), (4, 3, 3, 3), (4,)],
     {"strides": [2, 2], "pads": [1, 0, 1, 0], "activation": "Relu"}, 1),
    ("QLinearConv", [of(U8, 1, 9, 9, 3), S, Z, of(I8, 4, 3, 3, 3), S, ZI, S, Z],
     {"channels_last": 1, "dilations": [2, 2]}, 1),
    ("QLinearAdd", [of(U8, 2, 6, 32), S, Z, of(U8, 6, 1), S, Z, S, Z], {}, 1),
    ("QLinearMul", [of(U8, 6, 1), S, Z, of(U8, 2, 6, 32), S, Z, S, Z], {}, 1),
    ("QLinearSigmoid", [of(U8, 2, 6), S, Z, S, Z], {}, 1),
    ("QLinearLeakyRelu", [of(U8, 2, 6), S, Z, S, Z], {}, 1),
    ("QLinearSoftmax", [of(U8, 2, 6), S, Z, S, Z], {"opset": 13}, 1),
    ("QLinearConcat", [S, Z, of(U8, 2, 3), S, Z, of(U8, 2, 4), S, Z], {"axis": 1}, 1),
    ("QLinearWhere", [of(B, 2, 1), of(U8, 2, 6), S, Z, of(U8, 6), S, Z, S, Z], {}, 1),
    ("QLinearAveragePool", [of(U8, 1, 3, 9, 9), S, Z, S, Z],
     {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, 1),
    ("QLinearAveragePool", [of(U8, 1, 9, 8, 3), S, Z, S, Z], {"kernel_shape": [3, 2], "channels_last": 1}, 1),
    ("QLinearGlobalAveragePool", [of(U8, 1, 9, 8, 3), S, Z, S, Z], {"channels_last": 1}, 1),
    ("QLinearGlobalAveragePool", [of(U8, 1, 3, 9, 8), S, Z, S, Z], {}, 1),
    ("NhwcMaxPool", [of(U8, 1, 9, 8, 3)], {"kernel_shape": [3, 2], "strides": [2, 1]}, 1),
    ("MaxpoolWithMask", [(1, 3, 9, 8), ints([[[[1] * 8] * 9] * 3])[0]],
     {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER"}, 1),
    ("DequantizeLinear", [of(U8, 2, 6), S, Z], {}, 1),
    ("QuantizeLinear", [(2, 6), S, Z], {}, 1),
    ("DynamicQuantizeLSTM", [(7, 2, 5), of(I8, 1, 5, 12), of(I8, 1, 3, 12), None, None, None, None, None,
      np.ones(1, np.float32), np.zeros(1, np.int8), np.ones(1, np.float32), np.zeros(1, np.int8)],
     {"hidden_size": 3}, 3),
    ("CDist", [(5, 3), (7, 3)], {"metric": "sqeuclidean"}, 1),
    ("ExpandDims", [(5, 3), scalar(-1, np.int32)], {}, 1),
    ("GatherND", [(5, 3), ints([1], [2], dtype=np.int64)], {}, 1),
    ("Pad", [(5, 3), ints(1, 0, 0, 2, dtype=np.int64)], {"mode": "constant"}, 1),
    ("Range", [scalar(1), scalar(9), scalar(2)], {}, 1),
    ("Trilu", [(5, 3)], {}, 1),
    ("MurmurHash3", [ints(1, 2, 3)], {"positive": 1}, 1),
    ("NGramRepeatBlock", [ints([1, 2, 3], dtype=np.int64), (1, 9)], {"ngram_size": 2}, 1),
    ("CropAndResize", [(1, 3, 9, 9), (2, 4), ints(0, 0), ints(4, 5)], {}, 1),
    ("MoE", [(6, 8), (6, 4), (4, 16, 8), None, (4, 8, 16)], {"k": 2, "activation_type": "gelu"}, 1),
    ("ConvTransposeWithDynamicPads", [(1, 3, 9, 9), (3, 4, 3, 3), ints(1, 1, 1, 1, dtype=np.int64)],
     {"strides": [2, 2]}, 1),
]  # fmt: skip
"""Ops for which ONNX Runtime has a kernel for CPUs: arguments, attributes, and how many (or which) results."""


HAND = [
    ("PackedAttention", [(9, 32), (32, 96), (96,), of(I32, 2, 6), of(I32, 3)], {"num_heads": 4}, [(9, 32)]),
    ("PackedMultiHeadAttention", [(9, 4, 3, 8), None, None, None, of(I32, 2, 6), of(I32, 3)], {"num_heads": 4},
     [(9, 32)]),
    ("PackedMultiHeadAttention", [(9, 32), (9, 32), (9, 16), None, of(I32, 2, 6), of(I32, 3)], {"num_heads": 4},
     [(9, 16)]),
    ("DecoderMaskedSelfAttention", [(2, 1, 32), (32, 96), (96,), None, (2, 2, 4, 9, 8), None, ints(3)],
     {"num_heads": 4, "past_present_share_buffer": 1}, [(2, 1, 32), (2, 2, 4, 9, 8)]),
    ("DecoderMaskedMultiHeadAttention", [(2, 1, 96), None, None, None, None, CACHE, CACHE, ints(3)],
     {"num_heads": 4, "past_present_share_buffer": 1}, [(2, 1, 32), CACHE, CACHE]),
    ("DecoderAttention", [(6, 2, 32), (7, 2, 32), (32, 32), (32, 64), (96,), None, None, None,
     *(np.array([flag]) for flag in (True, False, False, False))], {"num_heads": 4},
     [(6, 2, 32), (2, 4, 7, 8), (2, 4, 7, 8)]),
    ("SparseAttention", [(2, 6, 32), (2, 6, 16), (2, 6, 16), (2, 2, 64, 8), (2, 2, 64, 8), of(I32, 4, 5),
     of(I32, 4, 9), ints(6), ints(6, 6)], {"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16},
     [(2, 6, 32), (2, 2, 64, 8), (2, 2, 64, 8)]),
    ("DynamicSparseAttention", [(2, 1, 32), (2, 1, 16), (2, 1, 16), (2, 2, 9, 8), (2, 2, 9, 8), None, None,
     of(I32, 2, 4), of(I32, 2), of(I32, 2), ints(6)], {"num_heads": 4, "kv_num_heads": 2},
     [(2, 1, 32), (2, 2, 9, 8), (2, 2, 9, 8)]),
    ("PagedAttention", [(9, 32), (9, 16), (9, 16), (7, 4, 2, 8), (7, 4, 2, 8), of(I32, 3), of(I32, 2), of(I32, 2, 3)],
     {"num_heads": 4, "kv_num_heads": 2}, [(9, 32), (7, 4, 2, 8), (7, 4, 2, 8)]),
    ("LongformerAttention", [(2, 64, 32), (32, 96), (96,), (2, 64), (32, 96), (96,), of(I32, 2, 64)],
     {"num_heads": 4, "window": 8}, [(2, 64, 32)]),
    ("QOrderedAttention", [of(I8, 2, 6, 32), S, S, S, S, of(I8, 32, 32), of(I8, 32, 32), of(I8, 32, 16), S, S, S,
     (32,), (32,), (16,), S, S, S], {"num_heads": 4}, [(2, 6, 16)]),
    ("QOrderedMatMul", [of(I8, 2, 6, 32), S, of(I8, 32, 7), S, S], {}, [(2, 6, 7)]),
    ("LinearAttention", [(2, 6, 32), (2, 6, 16), (2, 6, 24), None, (2, 6, 2), (2, 6, 2)],
     {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "gated_delta"}, [(2, 6, 48), (2, 2, 8, 12)]),
    ("CausalConvWithState", [(2, 8, 6), (8, 1, 4), (8,)], {}, [(2, 8, 6), (2, 8, 3)]),
    ("VarlenCausalConvWithState", [(9, 8), (8, 1, 4), of(I32, 3), None, (2, 8, 3)], {}, [(9, 8), (2, 8, 3)]),
    ("GatedDeltaNet", [(9, 4, 8), (9, 4, 8), (9, 6, 12), of(I32, 3), (9, 6), (9, 6), (2, 6, 12, 8)], {},
     [(9, 6, 12), (2, 6, 12, 8)]),
    ("GatedRelativePositionBias", [(2, 6, 32), (32,), (1, 4, 6, 6), (8, 8), (8,), (1, 4, 1, 1)], {"num_heads": 4},
     [(2, 4, 6, 6)]),
    ("RelativePositionBias", [(32, 4), ints(6, dtype=np.int64), ints(7, dtype=np.int64)], {"max_distance": 8},
     [(1, 4, 6, 7)]),
    ("RemovePadding", [(2, 6, 32), of(I32, 2)], {}, [(12, 32), (2, 6), (3,), (1,)]),
    ("RestorePadding", [(9, 32), of(I32, 2, 6)], {}, [(2, 6, 32)]),
    ("QMoE", [(6, 32), (6, 4), of(U8, 4, 128, 16), (4, 128), None, of(U8, 4, 32, 32), (4, 32)], {"k": 2}, [(6, 32)]),
    ("QEmbedLayerNormalization", [of(I32, 2, 6), None, of(U8, 9, 32), of(U8, 9, 32), None, of(U8, 32), of(U8, 32),
     None, S, S], {}, [(2, 6, 32), (2,)]),
    ("GroupNorm", [(2, 8, 8, 32), (32,), (32,)], {"groups": 4}, [(2, 8, 8, 32)]),
    ("SkipGroupNorm", [(2, 8, 8, 32), (32,), (32,), (2, 8, 8, 32)], {"groups": 4}, [(2, 8, 8, 32), (2, 8, 8, 32)]),
    ("BiasSplitGelu", [(2, 6, 32), (32,)], {}, [(2, 6, 16)]),
    ("BiasAdd", [(2, 6, 32), (32,), (2, 6, 32)], {}, [(2, 6, 32)]),
    ("BiasDropout", [(2, 6, 32), (32,)], {}, [(2, 6, 32), (2, 6, 32)]),
    ("BitmaskDropout", [(2, 6, 33)], {}, [(2, 6, 33), (13,)]),
    ("NhwcConv", [(1, 9, 9, 6), (4, 3, 2, 3)], {"group": 2}, [(1, 7, 8, 4)]),
    ("NhwcFusedConv", [(1, 9, 9, 6), (4, 3, 3, 2)], {"group": 2, "activation": "Relu"}, [(1, 7, 8, 4)]),
    ("MatMulBnb4", [(2, 6, 32), of(U8, 112), (4,)], {"K": 32, "N": 7, "block_size": 64}, [(2, 6, 7)]),
    ("MatMulFpQ4", [(2, 6, 32), of(U8, 112), ints(32, 7, dtype=np.int64)], {}, [(2, 6, 7)]),
    ("MatMulNBitsMlp", [(2, 6, 32), None, (32,), of(U8, 7, 1, 16), (7,), None, of(U8, 7, 1, 16), (7,)],
     {"K": 32, "N": 7}, [(2, 6, 7)]),
    ("MatMulNBitsQkv", [(2, 6, 32), (2, 6, 32), (32,), *[of(U8, 8, 1, 16), (8,), None] * 3],
     {"K": 32, "Nq": 8, "Nkv": 4}, [(2, 6, 8), (2, 6, 4), (2, 6, 4), (2, 6, 32)]),
    ("MatMulBlockQuantizedFp4Weight", [of(H, 2, 6, 32), of(U8, 7, 16), of(U8, 7, 2), S], {}, [(2, 6, 7)]),
    ("TorchEmbedding", [(9, 32), of(I64, 2, 6)], {}, [(2, 6, 32)]),
    ("Rfft", [(2, 16)], {"onesided": 1, "signal_ndim": 1}, [(2, 9, 2)]),
    ("Irfft", [(2, 9, 2)], {"onesided": 1, "signal_ndim": 1}, [(2, 16)]),
    ("UnfoldTensor", [(2, 16)], {"size": 4, "step": 3}, [(2, 5, 4)]),
    ("QLinearReduceMean", [of(U8, 2, 6, 32), S, Z, S, Z], {"axes": [1], "keepdims": 0}, [(2, 32)]),
    ("HyperConnectionPreMix", [(2, 6, 4, 32), (2, 6, 4)], {}, [(2, 6, 32)]),
    ("WordConvEmbedding", [of(I32, 2, 6, 12), (5, 1, 3, 4), (5,), (9, 4)], {}, [(2, 6, 5)]),
    ("com.microsoft.nchwc::ReorderInput", [(1, 9, 9, 16)], {"channels_last": 1}, [(1, 16, 9, 9)]),
    ("com.microsoft.nchwc::Conv", [(1, 16, 9, 9), (32, 16, 3, 3)], {"pads": [1, 1, 1, 1]}, [(1, 32, 9, 9)]),
    ("com.microsoft.nchwc::ReorderOutput", [(1, 32, 9, 9)], {"channels": 30}, [(1, 30, 9, 9)]),
    ("com.microsoft.nchwc::Upsample", [(1, 32, 9, 9)], {"scales": [1, 1, 2, 2]}, [(1, 32, 18, 18)]),
]  # fmt: skip
"""Ops that only other devices have kernels for: the shapes that their descriptions give them."""


def a_model(kind, arguments, attributes, outputs):
    """One op; arrays are initializers, tuples are inputs: a shape, perhaps after an element type."""
    domain, _, op_type = kind.rpartition("::")
    domain = domain if "::" in kind else "com.microsoft"
    inputs, weights, names = [], [], []
    for index, argument in enumerate(arguments):
        name = "" if argument is None else f"i{index}"
        names.append(name)
        if isinstance(argument, np.ndarray):
            weights.append(onnx.numpy_helper.from_array(argument, name))
        elif argument is not None:
            dtype, shape = argument if isinstance(argument[-1], tuple) else (F, argument)
            inputs.append(make_tensor_value_info(name, dtype, shape))
    wanted = range(outputs) if isinstance(outputs, int) else outputs
    made = [f"y{index}" if index in wanted else "" for index in range(max(wanted) + 1)]
    node = make_node(op_type, names, made, domain=domain, **attributes)
    graph = make_graph([node], "one", inputs, [onnx.ValueInfoProto(name=name) for name in made if name], weights)
    opsets = [make_opsetid("", 16), make_opsetid("com.microsoft", 1), make_opsetid("com.microsoft.nchwc", 1)]
    return make_model(graph, opset_imports=opsets, ir_version=8)
