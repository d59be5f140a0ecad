"""Converters for ATen operators whose kind, positions or attributes depend on shapes or other arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from placewise.model.dtypes import bytes_of
from placewise.readers.torch.op_specs import CallSite, Converter, OpSpec, convert_to, expand_sizes, make_spec
from placewise.readers.torch.strides import is_view
from placewise.readers.torch.traced_program import refs_in

SMALL_CONSTANT = 1 << 10
"""The maximum bytes of a created tensor that counts as a constant; larger ones are created at run time."""


def _convert_convolution(site: CallSite, *, transposed: bool | None = None) -> OpSpec:
    is_transposed = bool(site.get("transposed", False)) if transposed is None else transposed
    weight = site.meta("weight")
    spatial = len(weight.shape) - 2 if weight is not None else 2
    padding = site.get("padding", 0)
    attributes: dict[str, Any] = {
        "group": site.get("groups", 1),
        "strides": expand_sizes(site.get("stride", 1), spatial),
        "dilations": expand_sizes(site.get("dilation", 1), spatial),
        **({"auto_pad": padding} if isinstance(padding, str) else {"pads": expand_sizes(padding, spatial) * 2}),
    }
    spec = make_spec(site, "ConvTranspose" if is_transposed else "Conv", "input", "weight", "bias")
    return OpSpec(spec.kind, spec.arguments, attributes | dict(site.call.extra))


def _convert_attention(site: CallSite) -> OpSpec:
    """ONNX's Attention for four dimensions, or three (one head); other ranks keep the ATen name."""
    query = site.meta("query")
    rank = 4 if query is None else len(query.shape)
    kind = "Attention" if rank in (3, 4) else "aten::scaled_dot_product_attention"
    mask = "attn_bias" if "attn_bias" in site.call.arguments else "attn_mask"
    heads: dict[str, Any] = {"q_num_heads": 1, "kv_num_heads": 1} if rank == 3 else {}
    return make_spec(site, kind, "query", "key", "value", mask, is_causal=int(site.get("is_causal", False)), **heads)


def _convert_batch_norm(site: CallSite) -> OpSpec:
    training = int(site.get("training", site.get("train", False)))
    names = ("input", "weight", "bias", "running_mean", "running_var")
    return make_spec(site, "BatchNormalization", *names, training_mode=training)


def _convert_pool(site: CallSite, *, kind: str, spatial: int) -> OpSpec:
    return make_spec(site, kind, kernel_shape=expand_sizes(site.get("kernel_size", 1), spatial))


def _convert_adaptive_pool(site: CallSite, *, kind: str, spatial: int) -> OpSpec:
    """Pooling with windows of ⌈in / out⌉; a single window is global pooling."""
    before, after = site.meta("self"), site.result
    if before is None or after is None:
        return make_spec(site, site.call.op)
    sizes = list(zip(before.shape[-spatial:], after.shape[-spatial:], strict=True))
    if all(out == 1 for _, out in sizes):
        return make_spec(site, f"Global{kind}")
    return make_spec(site, kind, kernel_shape=tuple(-(-size // max(out, 1)) for size, out in sizes))


def _convert_reshape(site: CallSite) -> OpSpec:
    before, after = site.meta("self"), site.result
    if before is None or after is None or is_view(before.shape, before.strides, after.shape):
        return _keep_first_argument(make_spec(site, "Reshape", view=True))
    return _keep_first_argument(make_spec(site, "Reshape", copied=1))


def _keep_first_argument(spec: OpSpec) -> OpSpec:
    """The spec with the first argument only: ops like `view_as` use only the shape of the second."""
    return replace(spec, arguments=spec.arguments[:1])


def _convert_contiguous(site: CallSite) -> OpSpec:
    before = site.meta("self")
    after = site.result
    if before is not None and after is not None and before.strides == after.strides:
        return _make_identity(site)
    return make_spec(site, "aten::clone", "self")


def _convert_cast(site: CallSite) -> OpSpec:
    before, after = site.meta("self"), site.result
    if before is not None and after is not None and before.dtype != after.dtype:
        return make_spec(site, "Cast", "self")
    return make_spec(site, "aten::clone", "self") if site.call.op == "aten::_to_copy" else _make_identity(site)


def _make_identity(site: CallSite) -> OpSpec:
    first = make_spec(site, "Identity").arguments[:1]
    return OpSpec("Identity", first, dict(site.call.extra), view=True)


def _convert_dropout(site: CallSite) -> OpSpec:
    idle = not site.get("train", True) or site.get("p", 0.5) == 0
    return _make_identity(site) if idle and len(site.call.results) == 1 else make_spec(site, "aten::dropout")


def _convert_view(site: CallSite, *, kind: str) -> OpSpec:
    spec = _keep_first_argument(make_spec(site, kind, view=True))
    return replace(spec, attributes={**spec.attributes, "view": 1})


def _convert_transpose(site: CallSite) -> OpSpec:
    before = site.meta("self")
    rank = len(before.shape) if before is not None else 2
    spec = _convert_view(site, kind="Transpose")
    perm = list(range(rank))
    if site.call.op in ("aten::permute", "aten::permute_copy"):
        perm = [axis % rank for axis in site.get("dims", perm)]
    elif rank:
        first, second = site.get("dim0", site.get("axis0", -2)), site.get("dim1", site.get("axis1", -1))
        if rank > 1:
            perm[first % rank], perm[second % rank] = perm[second % rank], perm[first % rank]
    return OpSpec(spec.kind, spec.arguments, {"perm": tuple(perm), "view": 1}, view=True)


def _factory(site: CallSite, *, kind: str) -> OpSpec:
    """A tensor created from numbers: a constant if it is small, else created at run time."""
    result, spec = site.result, make_spec(site, kind)
    if spec.arguments or result is None or bytes_of(result.shape, result.dtype) > SMALL_CONSTANT:
        return spec
    return OpSpec("Constant", (), spec.attributes)


def _factory_like(site: CallSite, *, kind: str) -> OpSpec:
    """Like `_factory`; only shape and type of the first argument are used, so it is not read."""
    spec = make_spec(site, kind)
    rest = tuple(name for name in spec.arguments[1:] if name is not None)
    result = site.result
    small = not rest and result is not None and bytes_of(result.shape, result.dtype) <= SMALL_CONSTANT
    return OpSpec("Constant" if small else kind, rest, spec.attributes)


def _convert_extreme(site: CallSite, *, pair: str, reduced: str) -> OpSpec:
    return make_spec(site, pair if "other" in site.call.arguments else reduced)


def _convert_where(site: CallSite) -> OpSpec:
    return (
        make_spec(site, "Where", "condition", "self", "other")
        if len(site.call.arguments) > 1
        else make_spec(site, "NonZero")
    )


def _convert_softmax(site: CallSite, *, kind: str) -> OpSpec:
    return make_spec(site, kind, axis=site.get("dim", -1))


def _convert_top_k(site: CallSite) -> OpSpec:
    return make_spec(site, "TopK", axis=site.get("dim", -1))


def _convert_resize(site: CallSite, *, mode: str) -> OpSpec:
    return make_spec(site, "Resize", mode=mode)


def _convert_grid_sample(site: CallSite) -> OpSpec:
    mode = {0: "linear", 1: "nearest", 2: "cubic"}.get(site.get("interpolation_mode", 0), "linear")
    return make_spec(site, "GridSample", "input", "grid", mode=mode)


def _convert_scatter(site: CallSite) -> OpSpec:
    """An in-place scatter; the update is argument 1, as in TensorScatter."""
    update = next((name for name in ("values", "source", "src") if site.meta(name) is not None), "")
    return make_spec(site, "TensorScatter", "self", update) if update else make_spec(site, "aten::scatter_", "self")


def _convert_recurrent(site: CallSite, *, states: int) -> OpSpec:
    """Arguments: input, `states` initial states (None if omitted), then weights."""
    spec = make_spec(site, site.call.op)
    start = [*refs_in(site.get("input", site.get("data"))), *refs_in(site.get("hx"))]
    rest = [name for name in spec.arguments if name not in start]
    padded = [*start, *[None] * (states + 1 - len(start))]
    return OpSpec(spec.kind, (*padded, *rest), spec.attributes)


def _convert_fourier(site: CallSite) -> OpSpec:
    """Transforms along the given axes; by default `fft_fft2` uses the last two, `fft_fftn` all axes."""
    before, name = site.meta("self"), site.call.op
    rank = len(before.shape) if before is not None else 1
    default = range(rank) if name.endswith("n") else (-2, -1) if name.endswith("2") else (-1,)
    axes = site.get("dim", tuple(default))
    return make_spec(site, "aten::fft", axes=tuple(axes) if isinstance(axes, (list, tuple)) else (axes,))


_POOLS = (("avg", "AveragePool"), ("max", "MaxPool"))
_CONVERTERS: tuple[tuple[Converter, str], ...] = (
    (_convert_convolution, "convolution _convolution conv1d conv2d conv3d cudnn_convolution"),
    (partial(_convert_convolution, transposed=True), "conv_transpose1d conv_transpose2d conv_transpose3d"),
    (
        _convert_attention,
        "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable",
    ),
    (
        _convert_batch_norm,
        "batch_norm native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training",
    ),
    (
        _convert_reshape,
        "reshape view _unsafe_view flatten unflatten view_as reshape_as _reshape_alias ravel view_as_real "
        "view_as_complex",
    ),
    (convert_to("Squeeze", view=True), "squeeze"),
    (convert_to("Unsqueeze", view=True), "unsqueeze"),
    (_convert_contiguous, "contiguous"),
    (_convert_cast, "to _to_copy type_as float double half bfloat16 long int bool"),
    (
        _make_identity,
        "alias detach lift_fresh lift_fresh_copy lift resolve_conj resolve_neg positive requires_grad_ _conj",
    ),
    (_convert_dropout, "dropout native_dropout feature_dropout alpha_dropout feature_alpha_dropout"),
    (partial(_convert_view, kind="Expand"), "expand expand_as broadcast_to meshgrid broadcast_tensors"),
    (partial(_convert_view, kind="Slice"), "slice select narrow diagonal linalg_diagonal real imag unfold as_strided"),
    (
        partial(_convert_view, kind="Split"),
        "split chunk unbind tensor_split split_with_sizes unsafe_chunk unsafe_split hsplit vsplit dsplit",
    ),
    (_convert_transpose, "transpose t permute numpy_T mT mH adjoint matrix_H swapaxes swapdims movedim moveaxis"),
    (partial(_factory, kind="Range"), "arange linspace logspace range"),
    (partial(_factory, kind="ConstantOfShape"), "full zeros ones scalar_tensor tensor"),
    (
        partial(_factory_like, kind="ConstantOfShape"),
        "full_like zeros_like ones_like new_zeros new_ones new_full",
    ),
    (partial(_factory, kind="aten::empty"), "empty empty_strided empty_permuted"),
    (partial(_factory_like, kind="aten::empty"), "empty_like new_empty new_empty_strided"),
    (convert_to("Concat"), "cat concat concatenate hstack vstack dstack"),
    (convert_to("ConcatFromSequence", new_axis=1), "stack"),
    (partial(_convert_extreme, pair="Max", reduced="ReduceMax"), "max"),
    (partial(_convert_extreme, pair="Min", reduced="ReduceMin"), "min"),
    (convert_to("ReduceMax"), "amax any"),
    (convert_to("ReduceSum"), "sum"),
    (convert_to("ReduceMean"), "mean"),
    (_convert_where, "where"),
    (partial(_convert_softmax, kind="Softmax"), "softmax _softmax _safe_softmax"),
    (partial(_convert_softmax, kind="LogSoftmax"), "log_softmax _log_softmax"),
    (_convert_top_k, "topk"),
    (
        partial(_convert_resize, mode="nearest"),
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d",
    ),
    (
        partial(_convert_resize, mode="linear"),
        "upsample_linear1d upsample_bilinear2d upsample_trilinear3d _upsample_bilinear2d_aa",
    ),
    (partial(_convert_resize, mode="cubic"), "upsample_bicubic2d _upsample_bicubic2d_aa"),
    (_convert_grid_sample, "grid_sampler grid_sampler_2d grid_sampler_3d"),
    (_convert_scatter, "index_put_ _index_put_impl_ index_copy_ index_add_ scatter_ scatter_add_ scatter_reduce_"),
    (partial(_convert_recurrent, states=2), "lstm lstm_cell"),
    (partial(_convert_recurrent, states=1), "gru rnn_tanh rnn_relu gru_cell rnn_tanh_cell rnn_relu_cell"),
    (convert_to("aten::sort"), "sort argsort msort"),
    (
        _convert_fourier,
        "_fft_r2c _fft_c2c _fft_c2r fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 "
        "fft_fftn fft_ifftn fft_rfftn fft_irfftn",
    ),
)

SHAPE_DEPENDENT: Mapping[str, Converter] = {
    **{name: converter for converter, names in _CONVERTERS for name in names.split()},
    **{f"{name}_pool{n}d": partial(_convert_pool, kind=kind, spatial=n) for name, kind in _POOLS for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": partial(_convert_pool, kind="MaxPool", spatial=n) for n in (1, 2, 3)},
    **{
        f"{start}adaptive_{name}_pool{n}d": partial(_convert_adaptive_pool, kind=kind, spatial=n)
        for start in ("", "_")
        for name, kind in _POOLS
        for n in (1, 2, 3)
    },
}
"""ATen name → converter."""
