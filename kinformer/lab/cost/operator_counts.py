"""Tally: what a computation multiplies and how much memory its tensors take, counted operator by operator."""

import weakref
from collections.abc import Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


def count_lstm_flops(x: Tensor, of_x: Tensor, of_state: Tensor, *_: Any, **__: Any) -> int:
    """What a layer of an LSTM multiplies and adds: its two matrices at each step of each row."""
    return 2 * x.shape[0] * x.shape[1] * (of_x.numel() + of_state.numel())


LEFT_OUT = {torch.ops.aten.mkldnn_rnn_layer: count_lstm_flops}  # by PyTorch's counter


class Tally(TorchDispatchMode):
    """While it is entered: `flops` of matrix products and convolutions, and the bytes of tensors, `live` and at `peak`.

    Of the first `still` are those made without gradients.

    Choose it where a number must not depend on the machine: PyTorch's formulas of what an operator multiplies, with one
    for an LSTM, and the sizes of what it gives, each storage counted once and until it is freed. What a kernel keeps to
    itself is not seen.

    known: tensors that are there before, counted from the start.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()):
        super().__init__()
        self.flops, self.still, self.live, self.peak = 0, 0, 0, 0
        self._counted: dict[int, weakref.ref] = {}
        self._counting = True
        for tensor in tensors:
            self._note(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket, LEFT_OUT.get(func._overloadpacket))
        if self._counting and formula is not None:
            self.add(formula(*args, **kwargs, out_val=out))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        return out

    def add(self, flops: int) -> None:
        """Count some more."""
        self.flops += flops
        self.still += 0 if torch.is_grad_enabled() else flops

    @contextmanager
    def without_counting(self) -> Any:
        """What is multiplied inside is not counted; what is kept is."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    def restart(self) -> int:
        """The peak until now; a new one begins."""
        peak, self.peak = self.peak, self.live
        return peak

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._counted or not size:
            return

        def forget(_: object) -> None:
            self.live -= size
            self._counted.pop(key, None)

        self._counted[key] = weakref.ref(storage, forget)
        self.live += size
        self.peak = max(self.peak, self.live)


def products_of(call: Any) -> int:
    """How many multiplications and additions of numbers a call makes in matrix products."""
    with torch.no_grad(), Tally() as tally:
        call()
    return tally.flops
