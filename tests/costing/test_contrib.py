"""Cost rules of the ops that ONNX Runtime adds: against the ops that they are made of, or counts by hand."""

from __future__ import annotations

import pytest
from costing_helpers import one_op

from placewise.costing.work import work_of

MS = "com.microsoft::"


def flops(kind, *args, **kwargs):
    work = work_of(one_op(kind, *args, **kwargs))
    assert work.known[0] and not work.warnings
    return float(work.flops[0])


def test_forms_of_attention_are_worth_the_same():
    """Packed without padding, with a cache, ordered for int8 and in parts: the same products and the same softmax."""
    scores = 4 * 6 * 6 * (8 + 8 + 2.5) * 2  # heads, queries, keys
    whole = flops(MS + "Attention", [(3, 6, 32), (32, 96)], [(3, 6, 32)], num_heads=4)
    assert whole == 3 * (2 * 6 * 32 * 96 + scores)
    packed = {0: (18, 32), 1: (32, 96), 2: (96,), 3: (3, 6), 4: (4,)}
    assert flops(MS + "PackedAttention", packed, [(18, 32)], num_heads=4) == whole
    rows = {0: (18, 4, 3, 8), 4: (3, 6), 5: (4,)}
    assert flops(MS + "PackedMultiHeadAttention", rows, [(18, 32)], num_heads=4) == 3 * scores
    ordered = {0: (3, 6, 32), 5: (32, 32), 6: (32, 32), 7: (32, 32)}
    assert flops(MS + "QOrderedAttention", ordered, [(3, 6, 32)], num_heads=4) == whole
    cached = {0: (3, 1, 32), 1: (3, 1, 32), 2: (3, 1, 32), 5: (3, 4, 5, 8), 6: (3, 4, 5, 8)}
    one = flops(MS + "DecoderMaskedMultiHeadAttention", cached, [(3, 1, 32)], num_heads=4)
    assert one == 3 * 4 * 6 * 37
    in_place = flops(
        MS + "DecoderMaskedMultiHeadAttention", cached, [(3, 1, 32)], num_heads=4, past_present_share_buffer=1
    )
    assert in_place == 3 * 4 * 5 * 37
    apart = {0: (3, 1, 32), 1: (3, 1, 32), 2: (3, 1, 32), 6: (3, 4, 5, 8), 7: (3, 4, 5, 8)}
    assert flops(MS + "MultiHeadAttention", apart, [(3, 1, 32)], num_heads=4) == one
    assert flops(MS + "MultiHeadAttention", apart | {8: ()}, [(3, 1, 32)], num_heads=4) == in_place
    assert flops(MS + "DecoderMaskedMultiHeadAttention", cached | {7: (1,)}, [(3, 1, 32)], num_heads=4) == in_place
    grouped = {0: (3, 1, 32), 1: (3, 1, 32), 2: (3, 1, 32), 3: (3, 4, 5, 8), 4: (3, 4, 5, 8)}
    assert flops(MS + "GroupQueryAttention", grouped, [(3, 1, 32)], num_heads=4, kv_num_heads=4) == one
    linear = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "gated_delta"}
    shapes = [(2, 6, 32), (2, 6, 16), (2, 6, 24)]
    assert flops(MS + "LinearAttention", shapes, [(2, 6, 48)], **linear) == flops(
        "LinearAttention", shapes, [(2, 6, 48)], **linear
    )


def test_attention_to_a_part_of_the_keys():
    """A window of grouped queries, pages of a cache, keys that are selected, a long text seen through a window."""
    query = {0: (1, 1, 32), 1: (1, 1, 16), 2: (1, 1, 16), 3: (1, 2, 99, 8), 4: (1, 2, 99, 8)}
    outs, heads = [(1, 1, 32), (1, 2, 100, 8), (1, 2, 100, 8)], {"num_heads": 4, "kv_num_heads": 2}
    assert flops(MS + "GroupQueryAttention", query, outs, **heads) == 4 * 100 * 37
    assert flops(MS + "GroupQueryAttention", query, outs, **heads, local_window_size=16) == 4 * 16 * 37
    pages = {0: (9, 32), 1: (9, 16), 2: (9, 16), 3: (7, 4, 2, 8), 4: (7, 4, 2, 8), 5: (3,), 6: (2,), 7: (2, 3)}
    assert flops(MS + "PagedAttention", pages, [(9, 32)], **heads) == 9 * 4 * 12 * 37
    chosen = {**query, 7: (1, 20), 8: (1,), 9: (1,)}
    assert flops(MS + "DynamicSparseAttention", chosen, outs, **heads) == 4 * 20 * 37
    text = {0: (2, 64, 32), 1: (32, 96), 2: (96,), 3: (2, 64), 4: (32, 96), 5: (96,), 6: (2, 64)}
    local = 2 * 64 * (2 * 32 * (96 + 64)) + 2 * 4 * 64 * 17 * 37
    assert flops(MS + "LongformerAttention", text, [(2, 64, 32)], num_heads=4, window=8) == local


@pytest.mark.parametrize(("kind", "weights"), [("MoE", (2, 4)), ("QMoE", (2, 5))])
def test_experts_cost_those_that_a_token_is_sent_to(kind, weights):
    """Two of eight for each of six tokens; weights of four bits lie two in a byte."""
    first, second = weights
    packed = 2 if kind == "QMoE" else 1
    shapes = {0: (6, 32), 1: (6, 8), first: (8, 128, 32 // packed), second: (8, 32, 128 // packed)}
    dtypes = dict.fromkeys(weights, "uint8") if packed == 2 else {}
    products = 6 * 2 * 2 * (128 * 32 + 32 * 128)
    rest = 6 * 2 * (6 * 128 + 2 * 32) + 5 * 6 * 8
    work = work_of(one_op(MS + kind, shapes, [(6, 32)], dtypes=dtypes, k=2))
    assert float(work.flops[0]) == products + rest
    used = 1 - (6 / 8) ** 6
    given = 8 * 128 * 32 * 2 // (2 if packed == 2 else 1) * (1 if packed == 2 else 4)
    assert float(work.bytes[0]) == pytest.approx(used * given + 4 * (6 * 32 * 2 + 6 * 8))


def test_products_in_forms_of_their_own():
    """Fused projections are as many products as they have matrices, wherever a convolution's channels are."""
    three = [(2, 6, 32), (2, 6, 32), (32,)]
    qkv = flops(MS + "MatMulNBitsQkv", three, [(2, 6, 16), (2, 6, 8), (2, 6, 8)], K=32, Nq=16, Nkv=8)
    assert qkv == 2 * 12 * 32 * (16 + 8 + 8) + 4 * 12 * 32
    assert flops(MS + "MatMulNBitsMlp", three, [(2, 6, 7)], K=32, N=7) == 2 * (2 * 12 * 32 * 7) + 4 * 384 + 3 * 12 * 14
    assert flops(MS + "MatMulBlockQuantizedFp4Weight", [(2, 6, 32), (7, 16)], [(2, 6, 7)]) == 2 * 12 * 32 * 7
    plain = flops("Conv", [(1, 6, 9, 9), (4, 3, 3, 2)], [(1, 4, 7, 8)], group=2)
    assert flops(MS + "NhwcConv", [(1, 9, 9, 6), (4, 3, 2, 3)], [(1, 7, 8, 4)], group=2) == plain
    assert flops(MS + "CausalConvWithState", [(2, 8, 6), (8, 1, 4)], [(2, 8, 6)]) == 2 * 2 * 8 * 6 * 4
    transposed = {"transA": 1, "transBatchA": 1}
    assert flops(MS + "FusedMatMul", [(4, 3, 5), (3, 4, 7)], [(3, 5, 7)], **transposed) == 2 * 4 * 3 * 5 * 7
