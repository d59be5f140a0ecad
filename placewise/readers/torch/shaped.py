"""ATen operators whose kind, positions or attributes depend on shapes or on other arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from placewise.model.dtypes import bytes_of
from placewise.readers.torch.forms import Form, Former, Site, form, named, numbers
from placewise.readers.torch.listing import refs_in
from placewise.readers.torch.strides import is_view

SMALL_CONSTANT = 1 << 10
"""Bytes up to which a tensor made from nothing counts as a constant; larger ones are made when the model runs."""


def _convolution(site: Site, *, transposed: bool | None = None) -> Form:
    turned = bool(site.get("transposed", False)) if transposed is None else transposed
    weight = site.meta("weight")
    spatial = len(weight.shape) - 2 if weight is not None else 2
    padding = site.get("padding", 0)
    attributes: dict[str, Any] = {
        "group": site.get("groups", 1),
        "strides": numbers(site.get("stride", 1), spatial),
        "dilations": numbers(site.get("dilation", 1), spatial),
        **({"auto_pad": padding} if isinstance(padding, str) else {"pads": numbers(padding, spatial) * 2}),
    }
    made = form(site, "ConvTranspose" if turned else "Conv", "input", "weight", "bias")
    return Form(made.kind, made.arguments, attributes | dict(site.call.extra))


def _attention(site: Site) -> Form:
    """Four dimensions are ONNX's; three are one head; anything else keeps its name."""
    query = site.meta("query")
    rank = 4 if query is None else len(query.shape)
    kind = "Attention" if rank in (3, 4) else "aten::scaled_dot_product_attention"
    mask = "attn_bias" if "attn_bias" in site.call.arguments else "attn_mask"
    heads: dict[str, Any] = {"q_num_heads": 1, "kv_num_heads": 1} if rank == 3 else {}
    return form(site, kind, "query", "key", "value", mask, is_causal=int(site.get("is_causal", False)), **heads)


def _batch_norm(site: Site) -> Form:
    training = int(site.get("training", site.get("train", False)))
    names = ("input", "weight", "bias", "running_mean", "running_var")
    return form(site, "BatchNormalization", *names, training_mode=training)


def _pool(site: Site, *, kind: str, spatial: int) -> Form:
    return form(site, kind, kernel_shape=numbers(site.get("kernel_size", 1), spatial))


def _adaptive_pool(site: Site, *, kind: str, spatial: int) -> Form:
    """Windows of ⌈in / out⌉; one window over everything is global pooling."""
    before, after = site.meta("self"), site.result
    if before is None or after is None:
        return form(site, site.call.op)
    sizes = list(zip(before.shape[-spatial:], after.shape[-spatial:], strict=True))
    if all(out == 1 for _, out in sizes):
        return form(site, f"Global{kind}")
    return form(site, kind, kernel_shape=tuple(-(-size // max(out, 1)) for size, out in sizes))


def _reshape(site: Site) -> Form:
    before, after = site.meta("self"), site.result
    if before is None or after is None or is_view(before.shape, before.strides, after.shape):
        return _of_first(form(site, "Reshape", view=True))
    return _of_first(form(site, "Reshape", copied=1))


def _of_first(made: Form) -> Form:
    """Only the first argument is read: `view_as` and its like take no more than a shape from the other."""
    return replace(made, arguments=made.arguments[:1])


def _contiguous(site: Site) -> Form:
    before = site.meta("self")
    after = site.result
    if before is not None and after is not None and before.strides == after.strides:
        return _identity(site)
    return form(site, "aten::clone", "self")


def _cast(site: Site) -> Form:
    before, after = site.meta("self"), site.result
    if before is not None and after is not None and before.dtype != after.dtype:
        return form(site, "Cast", "self")
    return form(site, "aten::clone", "self") if site.call.op == "aten::_to_copy" else _identity(site)


def _identity(site: Site) -> Form:
    first = form(site, "Identity").arguments[:1]
    return Form("Identity", first, dict(site.call.extra), view=True)


def _dropout(site: Site) -> Form:
    idle = not site.get("train", True) or site.get("p", 0.5) == 0
    return _identity(site) if idle and len(site.call.results) == 1 else form(site, "aten::dropout")


def _seen_as(site: Site, *, kind: str) -> Form:
    made = _of_first(form(site, kind, view=True))
    return replace(made, attributes={**made.attributes, "view": 1})


def _permuted(site: Site) -> Form:
    before = site.meta("self")
    rank = len(before.shape) if before is not None else 2
    made = _seen_as(site, kind="Transpose")
    perm = list(range(rank))
    if site.call.op in ("aten::permute", "aten::permute_copy"):
        perm = [axis % rank for axis in site.get("dims", perm)]
    elif rank:
        first, second = site.get("dim0", site.get("axis0", -2)), site.get("dim1", site.get("axis1", -1))
        if rank > 1:
            perm[first % rank], perm[second % rank] = perm[second % rank], perm[first % rank]
    return Form(made.kind, made.arguments, {"perm": tuple(perm), "view": 1}, view=True)


def _made(site: Site, *, kind: str) -> Form:
    """A tensor from nothing but numbers: a constant where it is small, else made when the model runs."""
    result, made = site.result, form(site, kind)
    if made.arguments or result is None or bytes_of(result.shape, result.dtype) > SMALL_CONSTANT:
        return made
    return Form("Constant", (), made.attributes)


def _made_like(site: Site, *, kind: str) -> Form:
    """As `_made`: of the tensor that it is like, only shape and type are taken, and nothing is read."""
    made = form(site, kind)
    rest = tuple(name for name in made.arguments[1:] if name is not None)
    result = site.result
    small = not rest and result is not None and bytes_of(result.shape, result.dtype) <= SMALL_CONSTANT
    return Form("Constant" if small else kind, rest, made.attributes)


def _extreme(site: Site, *, pair: str, reduced: str) -> Form:
    return form(site, pair if "other" in site.call.arguments else reduced)


def _where(site: Site) -> Form:
    return form(site, "Where", "condition", "self", "other") if len(site.call.arguments) > 1 else form(site, "NonZero")


def _softmax(site: Site, *, kind: str) -> Form:
    return form(site, kind, axis=site.get("dim", -1))


def _top_k(site: Site) -> Form:
    return form(site, "TopK", axis=site.get("dim", -1))


def _resized(site: Site, *, mode: str) -> Form:
    return form(site, "Resize", mode=mode)


def _grid_sample(site: Site) -> Form:
    mode = {0: "linear", 1: "nearest", 2: "cubic"}.get(site.get("interpolation_mode", 0), "linear")
    return form(site, "GridSample", "input", "grid", mode=mode)


def _written(site: Site) -> Form:
    """Written in place at some places: the update is argument 1, as in TensorScatter."""
    update = next((name for name in ("values", "source", "src") if site.meta(name) is not None), "")
    return form(site, "TensorScatter", "self", update) if update else form(site, "aten::scatter_", "self")


def _recurrent(site: Site, *, states: int) -> Form:
    """Input, then `states` initial states, None where they are left out, then weights."""
    made = form(site, site.call.op)
    start = [*refs_in(site.get("input", site.get("data"))), *refs_in(site.get("hx"))]
    rest = [name for name in made.arguments if name not in start]
    padded = [*start, *[None] * (states + 1 - len(start))]
    return Form(made.kind, (*padded, *rest), made.attributes)


def _fourier(site: Site) -> Form:
    """Transforms along the given axes; `fft_fft2` along two, `fft_fftn` along all unless it says otherwise."""
    before, name = site.meta("self"), site.call.op
    rank = len(before.shape) if before is not None else 1
    default = range(rank) if name.endswith("n") else (-2, -1) if name.endswith("2") else (-1,)
    axes = site.get("dim", tuple(default))
    return form(site, "aten::fft", axes=tuple(axes) if isinstance(axes, (list, tuple)) else (axes,))


_POOLS = (("avg", "AveragePool"), ("max", "MaxPool"))
_FORMERS: tuple[tuple[Former, str], ...] = (
    (_convolution, "convolution _convolution conv1d conv2d conv3d cudnn_convolution"),
    (partial(_convolution, transposed=True), "conv_transpose1d conv_transpose2d conv_transpose3d"),
    (
        _attention,
        "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable",
    ),
    (
        _batch_norm,
        "batch_norm native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training",
    ),
    (
        _reshape,
        "reshape view _unsafe_view flatten unflatten view_as reshape_as _reshape_alias ravel view_as_real "
        "view_as_complex",
    ),
    (named("Squeeze", view=True), "squeeze"),
    (named("Unsqueeze", view=True), "unsqueeze"),
    (_contiguous, "contiguous"),
    (_cast, "to _to_copy type_as float double half bfloat16 long int bool"),
    (_identity, "alias detach lift_fresh lift_fresh_copy lift resolve_conj resolve_neg positive requires_grad_ _conj"),
    (_dropout, "dropout native_dropout feature_dropout alpha_dropout feature_alpha_dropout"),
    (partial(_seen_as, kind="Expand"), "expand expand_as broadcast_to meshgrid broadcast_tensors"),
    (partial(_seen_as, kind="Slice"), "slice select narrow diagonal linalg_diagonal real imag unfold as_strided"),
    (
        partial(_seen_as, kind="Split"),
        "split chunk unbind tensor_split split_with_sizes unsafe_chunk unsafe_split hsplit vsplit dsplit",
    ),
    (_permuted, "transpose t permute numpy_T mT mH adjoint matrix_H swapaxes swapdims movedim moveaxis"),
    (partial(_made, kind="Range"), "arange linspace logspace range"),
    (partial(_made, kind="ConstantOfShape"), "full zeros ones scalar_tensor tensor"),
    (partial(_made_like, kind="ConstantOfShape"), "full_like zeros_like ones_like new_zeros new_ones new_full"),
    (partial(_made, kind="aten::empty"), "empty empty_strided empty_permuted"),
    (partial(_made_like, kind="aten::empty"), "empty_like new_empty new_empty_strided"),
    (named("Concat"), "cat concat concatenate hstack vstack dstack"),
    (named("ConcatFromSequence", new_axis=1), "stack"),
    (partial(_extreme, pair="Max", reduced="ReduceMax"), "max"),
    (partial(_extreme, pair="Min", reduced="ReduceMin"), "min"),
    (named("ReduceMax"), "amax any"),
    (named("ReduceSum"), "sum"),
    (named("ReduceMean"), "mean"),
    (_where, "where"),
    (partial(_softmax, kind="Softmax"), "softmax _softmax _safe_softmax"),
    (partial(_softmax, kind="LogSoftmax"), "log_softmax _log_softmax"),
    (_top_k, "topk"),
    (
        partial(_resized, mode="nearest"),
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d",
    ),
    (
        partial(_resized, mode="linear"),
        "upsample_linear1d upsample_bilinear2d upsample_trilinear3d _upsample_bilinear2d_aa",
    ),
    (partial(_resized, mode="cubic"), "upsample_bicubic2d _upsample_bicubic2d_aa"),
    (_grid_sample, "grid_sampler grid_sampler_2d grid_sampler_3d"),
    (_written, "index_put_ _index_put_impl_ index_copy_ index_add_ scatter_ scatter_add_ scatter_reduce_"),
    (partial(_recurrent, states=2), "lstm lstm_cell"),
    (partial(_recurrent, states=1), "gru rnn_tanh rnn_relu gru_cell rnn_tanh_cell rnn_relu_cell"),
    (named("aten::sort"), "sort argsort msort"),
    (
        _fourier,
        "_fft_r2c _fft_c2c _fft_c2r fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 "
        "fft_fftn fft_ifftn fft_rfftn fft_irfftn",
    ),
)

SHAPED: Mapping[str, Former] = {
    **{name: former for former, names in _FORMERS for name in names.split()},
    **{f"{name}_pool{n}d": partial(_pool, kind=kind, spatial=n) for name, kind in _POOLS for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": partial(_pool, kind="MaxPool", spatial=n) for n in (1, 2, 3)},
    **{
        f"{start}adaptive_{name}_pool{n}d": partial(_adaptive_pool, kind=kind, spatial=n)
        for start in ("", "_")
        for name, kind in _POOLS
        for n in (1, 2, 3)
    },
}
"""ATen name → what becomes of its calls."""
