"""How much tensor storage a piece of code holds at once.

Each tensor that an operation returns is entered by its storage and taken out when the storage dies. Memory that one
operation uses within itself is not seen; for that, measure the peak of a fresh process.
"""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """`peak`: most bytes live at once while active; `biggest`: the largest single storage."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.biggest = 0
        self._sizes: dict[int, int] = {}

    def ignore(self, *tensors: torch.Tensor) -> None:
        """Do not count tensors that were there before."""
        for tensor in tensors:
            self._sizes[tensor.untyped_storage()._cdata] = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                self._enter(leaf.untyped_storage())
        return out

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._sizes:
            return
        self._sizes[key] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        self.biggest = max(self.biggest, size)
        weakref.finalize(storage, self._leave, key)

    def _leave(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)
