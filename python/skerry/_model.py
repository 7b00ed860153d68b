"""A model as the library sees it: tensors with names, shapes and dtypes, whose values are read and written in place.

A model is a mapping of names to NumPy arrays, or a PyTorch module (any object with state_dict() and modules()).  PyTorch
is imported only for the latter."""
from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _lib

_NUMPY = {np.dtype(np.float32): _lib.F32, np.dtype(np.float16): _lib.F16, np.dtype(np.int64): _lib.I64,
          np.dtype(np.int32): _lib.I32}


class Item:
    """One tensor, found by its key in a mapping: a script may replace the tensor, as `w["a"] = w["a"] - step` does."""

    def __init__(self, name: str, place: tuple[Any, str], dtype: int, buffer: bool):
        self.name, self.dtype, self.buffer = name, dtype, buffer
        self._mapping, self._key = place
        self.shape = tuple(self._mapping[self._key].shape)
        self.shared: Any = None  # the same tensor in the memory shared with the worker; None: not synchronised

    @property
    def value(self) -> Any:
        """The model's own tensor, which is written in place."""
        value = self._mapping.get(self._key)
        shape = tuple(getattr(value, "shape", ()))
        if value is None or shape != self.shape:
            raise _lib.Error(f"{self.name} was a tensor of shape {self.shape} when the script joined, and is "
                             f"{'none' if value is None else f'of shape {shape}'} now")
        return value

    def replace(self, value: Any) -> None:
        """Puts another tensor of this shape in its place."""
        self._mapping[self._key] = value


def _numpy_items(model: Mapping[str, np.ndarray]) -> list[Item]:
    items = []
    for name, value in model.items():
        if not isinstance(value, np.ndarray) or value.dtype not in _NUMPY:
            raise _lib.Error(f"{name} is {getattr(value, 'dtype', type(value).__name__)}, expected a NumPy array of "
                             "float32, float16, int64 or int32")
        items.append(Item(name, (model, name), _NUMPY[value.dtype], value.dtype.kind != "f"))
    return items


def _adapter_names(model: Any) -> dict[int, str]:
    """The names that peft gives the weights of an adapter in a file, by their addresses; {} for any other model."""
    model = getattr(model, "_orig_mod", model)
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        return {}
    saved = peft.get_peft_model_state_dict(model, adapter_name=model.active_adapter, save_embedding_layers=False)
    return {value.data_ptr(): name for name, value in saved.items()}


def _torch_items(model: Any) -> list[Item]:
    import torch
    adapter = _adapter_names(model)
    kinds = {torch.float32: _lib.F32, torch.bfloat16: _lib.BF16, torch.float16: _lib.F16, torch.int64: _lib.I64,
             torch.int32: _lib.I32}
    places = {id(value): (mapping, key) for module in model.modules() for mapping in (module._parameters, module._buffers)
              for key, value in mapping.items()}
    items, seen = [], set()
    for name, value in model.state_dict(keep_vars=True).items():
        trained = isinstance(value, torch.nn.Parameter) and value.requires_grad
        if not isinstance(value, torch.Tensor) or value.numel() == 0:
            continue
        if isinstance(value, torch.nn.Parameter) and not trained:
            continue  # frozen: it is the same everywhere
        if value.dtype not in kinds:
            if trained:
                raise _lib.Error(f"{name} is {value.dtype}, expected float32, bfloat16 or float16")
            continue  # masks and the like stay where they are
        place = (value.data_ptr(), tuple(value.shape), value.dtype)
        if place in seen:
            continue  # tied to a tensor that is in the list
        seen.add(place)
        # "_orig_mod." is the prefix of torch.compile: weights keep the names from before it.
        name = adapter.get(value.data_ptr(), name.replace("_orig_mod.", ""))
        items.append(Item(name, places.get(id(value), ({name: value}, name)), kinds[value.dtype], not trained))
    return items


def items_of(model: Any) -> list[Item]:
    """The tensors of a model; of tied ones only the first."""
    if isinstance(model, Mapping):
        return _numpy_items(model)
    if hasattr(model, "state_dict") and hasattr(model, "modules"):
        return _torch_items(model)
    raise _lib.Error(f"a {type(model).__name__} is not a model: expected a PyTorch module, or a dict of NumPy arrays")


def share(item: Item, address: int) -> None:
    """Sets the item's shared tensor to memory of the library at this address."""
    value = item.value
    if isinstance(value, np.ndarray):
        memory = (ctypes.c_char * value.nbytes).from_address(address)
        item.shared = np.frombuffer(memory, value.dtype).reshape(value.shape)
        return
    torch = sys.modules["torch"]
    memory = (ctypes.c_char * (value.numel() * value.element_size())).from_address(address)
    item.shared = torch.frombuffer(memory, dtype=value.dtype).view(value.shape)


def load(items: list[Item]) -> None:
    """Copies the worker's weights into the model, in place."""
    for item in items:
        if item.shared is None:
            continue
        value = item.value
        if not isinstance(item.shared, np.ndarray):
            value.data.copy_(item.shared)
        elif isinstance(value, np.ndarray) and value.flags.writeable:
            value[...] = item.shared
        else:
            item.replace(item.shared.copy())  # the script has put an array of JAX there, which cannot be written


def store(items: list[Item]) -> None:
    """Copies the model's weights into the memory that the worker reads."""
    for item in items:
        if item.shared is None:
            continue
        if isinstance(item.shared, np.ndarray):
            item.shared[...] = item.value
        else:
            item.shared.copy_(item.value.data)
