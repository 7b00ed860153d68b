"""libskerry by ctypes: the declarations of skerry.h, and its errors as exceptions."""
from __future__ import annotations

import ctypes
import os

RANK_MAX = 8
F32, BF16, F16, I64, I32 = range(1, 6)
END, BEGIN, PHASE, EVALUATE, DRAW = range(5)
NO_SAMPLES, IMAGES, TEXTS = range(3)


class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_uint),
                ("shape", ctypes.c_uint64 * RANK_MAX), ("buffer", ctypes.c_bool)]


Exchange = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)


class Options(ctypes.Structure):
    _fields_ = [("library", ctypes.c_char_p), ("evaluates", ctypes.c_bool), ("draws", ctypes.c_bool),
                ("keeps_state", ctypes.c_bool), ("give", Exchange), ("take", Exchange), ("arg", ctypes.c_void_p)]


class Order(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("samples_kind", ctypes.c_int), ("samples", ctypes.c_uint64),
                ("batch", ctypes.c_uint32), ("round", ctypes.c_uint32), ("path", ctypes.c_uint32),
                ("replica", ctypes.c_uint32), ("replicas", ctypes.c_uint32), ("steps", ctypes.c_uint32),
                ("seconds", ctypes.c_uint32), ("first_step", ctypes.c_uint64), ("total_steps", ctypes.c_uint64),
                ("seed", ctypes.c_uint64), ("goes_on", ctypes.c_bool), ("wants_state", ctypes.c_bool),
                ("state_fd", ctypes.c_int), ("precision", ctypes.c_char_p), ("prompt", ctypes.c_char_p),
                ("tokens", ctypes.c_uint32), ("temperature", ctypes.c_float), ("top_p", ctypes.c_float),
                ("labels", ctypes.POINTER(ctypes.c_uint32)), ("n_labels", ctypes.c_size_t),
                ("columns", ctypes.c_uint32)]


class Sample(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("cls", ctypes.c_uint32)]


class Progress(ctypes.Structure):
    _fields_ = [("loss", ctypes.c_float), ("samples", ctypes.c_uint32), ("lr", ctypes.c_float),
                ("grad_norm", ctypes.c_float)]


class Result(ctypes.Structure):
    _fields_ = [("state_fd", ctypes.c_int), ("loss_sum", ctypes.c_double), ("units", ctypes.c_uint64),
                ("text", ctypes.c_char_p), ("picture_fd", ctypes.c_int)]


class Error(RuntimeError):
    """A refusal or failure of the worker or the library, in one sentence."""


def _load() -> ctypes.CDLL:
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libskerry.so")
    try:
        return ctypes.CDLL(beside if os.path.exists(beside) else "libskerry.so.2")
    except OSError as why:
        raise ImportError(f"skerry needs libskerry.so.2, which cannot be loaded ({why}): build it with `make libskerry` and install it, "
                          "or install the wheel of `make python`, which has it inside") from None


class _Live(ctypes.c_void_p):
    """The handle of an island, which is refused once the script has left it."""

    @classmethod
    def from_param(cls, handle: ctypes.c_void_p) -> ctypes.c_void_p:
        if not handle:
            raise Error("the script has left its island, or has not begun with island.phases() yet")
        return handle


lib = _load()
_handle, _void = _Live, ctypes.c_void_p
for _name, _result, _arguments in (
        ("skerry_join", ctypes.c_int,
         [ctypes.POINTER(Options), ctypes.POINTER(Tensor), ctypes.c_size_t, ctypes.POINTER(_void)]),
        ("skerry_leave", None, [_void]),
        ("skerry_alone", ctypes.c_bool, [_handle]),
        ("skerry_error", ctypes.c_char_p, []),
        ("skerry_weights", _void, [_handle, ctypes.c_size_t]),
        ("skerry_next", ctypes.c_int, [_handle, ctypes.POINTER(Order)]),
        ("skerry_samples", ctypes.c_int, [_handle, ctypes.POINTER(Sample), ctypes.c_int]),
        ("skerry_more", ctypes.c_bool, [_handle]),
        ("skerry_lr_scale", ctypes.c_double, [_handle]),
        ("skerry_step", ctypes.c_int, [_handle, ctypes.POINTER(Progress)]),
        ("skerry_number", ctypes.c_int, [_handle, ctypes.c_char_p, ctypes.c_double]),
        ("skerry_done", ctypes.c_int, [_handle, ctypes.POINTER(Result)]),
        ("skerry_fail", ctypes.c_int, [_handle, ctypes.c_char_p]),
        ("skerry_lack_memory", ctypes.c_int, [_handle, ctypes.c_char_p])):
    _function = getattr(lib, _name)
    _function.restype, _function.argtypes = _result, _arguments


def check(code: int) -> int:
    """Returns a result of the library; raises Error for a negative one."""
    if code < 0:
        raise Error(lib.skerry_error().decode("utf-8", "replace"))
    return code
