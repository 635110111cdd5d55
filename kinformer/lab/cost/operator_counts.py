"""Tally: flops and memory of a computation, counted for each PyTorch operator that it calls."""

import weakref
from collections.abc import Iterable
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


def count_lstm_flops(x: Tensor, of_x: Tensor, of_state: Tensor, *_: Any, **__: Any) -> int:
    """Return the flops of an LSTM layer: two matrix products at each step of each row.

    x: input of the layer, [rows, steps, ...] or [steps, rows, ...].
    of_x, of_state: weights for the input and for the state.
    """
    return 2 * x.shape[0] * x.shape[1] * (of_x.numel() + of_state.numel())


def count_qr_flops(a: Tensor, *_: Any, **__: Any) -> int:
    """Return the flops of QR factors by Householder reflections: those of R, and as many for Q.

    a: matrices, [..., M, N] with M >= N.
    """
    rows, columns = a.shape[-2:]
    return a.numel() // (rows * columns) * (4 * rows * columns**2 - 4 * columns**3 // 3)


def count_triangular_flops(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Return the flops of solving A X = B with triangular matrices A.

    a: matrices, [..., N, N].
    b: right-hand sides, [..., N, K].
    """
    return max(a.numel() * b.shape[-1], b.numel() * a.shape[-1])


# operators without a formula in PyTorch's counter
LEFT_OUT = {
    torch.ops.aten.mkldnn_rnn_layer: count_lstm_flops,
    torch.ops.aten.linalg_qr: count_qr_flops,
    torch.ops.aten.linalg_solve_triangular: count_triangular_flops,
}


class Tally(TorchDispatchMode):
    """Counter of the flops of matrix products and convolutions, and of the bytes of tensors.

    Choose it if the counts must not depend on the machine. It uses PyTorch's formulas for the flops of an operator, and
    own formulas for an LSTM, QR factors and triangular systems, which PyTorch lacks. Bytes are the sizes of outputs;
    each storage counts once, until it is freed. Internal buffers of kernels are not seen.

    Attributes: `flops` counts all flops, `still` counts the flops of operators that record no gradient, `live` is the
    number of bytes alive now, and `peak` is the largest value of `live`.

    tensors: tensors that exist already, counted from the start.
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
        """Add flops to the count."""
        self.flops += flops
        self.still += 0 if torch.is_grad_enabled() else flops

    @contextmanager
    def without_counting(self) -> Any:
        """Count no flops while the context is entered. Memory is still counted."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    def restart(self) -> int:
        """Return the peak of memory so far, and restart the measurement of the peak."""
        peak, self.peak = self.peak, self.live
        return peak

    def _note(self, tensor: Tensor) -> None:
        """Count the storage of a tensor until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._counted or not size:
            return
        self._counted[key] = weakref.ref(storage, partial(self._forget, key, size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int, size: int, _: object) -> None:
        self.live -= size
        self._counted.pop(key, None)


def products_of(call: Any) -> int:
    """Return the flops of a call in matrix products and convolutions.

    call: the function to call.
    """
    with torch.no_grad(), Tally() as tally:
        call()
    return tally.flops
