"""numpy arrays into torch tensors and back, bfloat16 included.

torch knows bfloat16 and numpy does not: the bits travel as int16.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["to_numpy", "to_tensor"]

Array = NDArray[np.generic]


def to_tensor(array: Array) -> "Tensor":
    """A tensor on the array's own memory, or on a copy where that is read-only or has negative strides."""
    import torch

    usable = array if array.flags.writeable and array.flags.c_contiguous else np.array(array, order="C")
    if usable.dtype.name == "bfloat16":
        return torch.from_numpy(usable.view(np.int16)).view(torch.bfloat16)
    tensor: Tensor = torch.from_numpy(usable)
    return tensor


def to_numpy(tensor: "Tensor") -> Array:
    """A fresh array with the tensor's values."""
    import torch

    host = tensor.detach().cpu().contiguous()
    if host.dtype is torch.bfloat16:
        import ml_dtypes

        return np.array(host.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(host.numpy())
