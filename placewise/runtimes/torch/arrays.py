"""Conversion between numpy arrays and PyTorch tensors, including element types that numpy itself lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from placewise.readers.torch.dtypes import dtype_name
from placewise.runtimes.inputs import numpy_dtype


def tensor_of(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor with a copy of the values of an array."""
    array = np.array(array, order="C")
    if array.dtype.kind in "fiubc":
        return torch.from_numpy(array)
    dtype = getattr(torch, str(array.dtype))  # bfloat16, float8_e4m3fn, float8_e5m2
    return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(dtype)


def tensors_of(names: Sequence[str], arrays: Mapping[str, npt.NDArray[Any]]) -> list[torch.Tensor]:
    """Tensors with the values of arrays, in the order of `names`; inputs without one, which no op reads, are zero."""
    return [tensor_of(arrays[name]) if name in arrays else torch.zeros(()) for name in names]


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """An array with a copy of the values of a tensor in host memory."""
    dtype = numpy_dtype(dtype_name(tensor.dtype))
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if dtype.kind in "fiubc":
        return np.array(tensor.numpy())
    return np.array(tensor.view(torch.uint8).numpy()).view(dtype).reshape(tensor.shape)
