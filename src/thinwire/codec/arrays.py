"""Checks what the caller hands in and turns it into what kernels take: NumPy arrays without a copy, torch or not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from thinwire.errors import ConfigError
from thinwire.kernels import ops

if TYPE_CHECKING:
    import torch

    Array = npt.NDArray[Any] | torch.Tensor
else:
    Array = Any

_KINDS: Final = {
    np.dtype(np.float32): ops.FLOAT32,
    np.dtype(np.float16): ops.FLOAT16,
    np.dtype(np.float64): ops.FLOAT32,
}
_FLOATS: Final = "float32, float16, bfloat16 (torch), float64"


def is_tensor(array: object) -> bool:
    """Whether ``array`` is a torch tensor; never imports torch, which nobody without it can have one of."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _numpy(name: str, array: Any) -> npt.NDArray[Any]:
    """The memory of an array or CPU tensor as NumPy; bfloat16 as its uint16 bits."""
    if not is_tensor(array):
        if not isinstance(array, np.ndarray):
            raise ConfigError(f"{name} is a {type(array).__name__}; allowed: a NumPy array or a torch tensor")
        return array
    import torch

    if array.device.type != "cpu":
        raise ConfigError(f"{name} is on device {str(array.device)!r}; allowed: 'cpu' (move it with .cpu() first)")
    if array.layout != torch.strided:
        raise ConfigError(f"{name} has layout {array.layout}; allowed: torch.strided (dense)")
    array = array.detach()
    return array.view(torch.uint16).numpy() if array.dtype == torch.bfloat16 else array.resolve_conj().numpy()


def rows_in(rows: Any) -> ops.Rows:
    """An encoder's input: (r, n), any float type, copied only if a row is not contiguous or is float64."""
    data = _numpy("rows", rows)
    bfloat16 = is_tensor(rows) and rows.dtype == sys.modules["torch"].bfloat16
    kind = ops.BFLOAT16 if bfloat16 else _KINDS.get(data.dtype.newbyteorder("="))
    if kind is None:
        raise ConfigError(f"rows has dtype {data.dtype.name}; allowed: {_FLOATS}")
    if data.ndim != 2:
        raise ConfigError(f"rows has shape {tuple(data.shape)}; allowed: two dimensions, (rows, elements)")
    if data.dtype == np.float64:
        with np.errstate(over="ignore", invalid="ignore"):
            data = data.astype(np.float32)
    if not data.dtype.isnative:
        data = data.astype(data.dtype.newbyteorder("="))
    if (data.shape[1] > 1 and data.strides[1] != data.itemsize) or not data.flags.aligned:
        data = np.ascontiguousarray(data)
    return ops.Rows(data.view(np.uint16) if kind == ops.FLOAT16 else data, kind)


def buffer(name: str, array: Any, shape: tuple[int, int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A caller's output buffer: the exact shape and dtype, writable, each row contiguous."""
    if is_tensor(array) and array.requires_grad:
        raise ConfigError(f"{name} requires grad; allowed: a tensor that does not, since it is written in place")
    data = _numpy(name, array)
    wanted = np.dtype(dtype)
    if data.dtype != wanted or data.shape != shape:
        raise ConfigError(f"{name} is {data.dtype.name}{tuple(data.shape)}; allowed: {wanted.name}{shape}")
    if not data.flags.writeable or not data.flags.aligned:
        raise ConfigError(f"{name} is read-only or not aligned; allowed: writable, aligned memory")
    if data.shape[1] > 1 and data.strides[1] != data.itemsize:
        raise ConfigError(f"{name} has strides {data.strides}; allowed: contiguous rows")
    return data


def wire_in(wire: Any, width: int) -> npt.NDArray[np.uint8]:
    """A decoder's input: (r, width) bytes."""
    data = _numpy("wire", wire)
    if data.dtype != np.uint8 or data.ndim != 2:
        raise ConfigError(f"wire is {data.dtype.name}{tuple(data.shape)}; allowed: uint8 with two dimensions (rows, bytes)")
    if data.shape[1] != width:
        raise ConfigError(f"wire has {data.shape[1]} bytes a row; allowed here: {width}")
    return np.require(np.ascontiguousarray(data), requirements="A")


def new_like(array: Any, shape: tuple[int, int], dtype: npt.DTypeLike) -> tuple[npt.NDArray[Any], Any]:
    """Fresh memory and the same memory as the kind of array that ``array`` is."""
    data = np.empty(shape, dtype=dtype)
    if not is_tensor(array):
        return data, data
    import torch

    return data, torch.from_numpy(data)
