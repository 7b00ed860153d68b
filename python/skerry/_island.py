"""The island: a model and its optimiser, which carry out the orders of a worker."""
from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from . import _lib, _model
from ._lib import check, lib

_END = 256  # the token at both ends of a text in bytes
_PIECE_MIN = 33  # the fewest tokens of the last piece of a text
_BATCHES_MAX = 1000  # batches of one step; after more the script has forgotten phase.step()
_REASON_MAX = 240  # bytes of an exception's text; a worker keeps 300 of it and its place


class Sample:
    """One sample: the tokens of a text, or the file of an image and its class."""

    __slots__ = ("data", "cls", "text")

    def __init__(self, data: bytes, cls: int = 0, text: bool = False):
        self.data, self.cls, self.text = data, cls, text

    @property
    def tokens(self) -> np.ndarray:
        """The tokens of a text, as int32."""
        return np.frombuffer(self.data, "<i4")


def read_texts(path: str, context: int = 256, field: str = "text") -> list[Sample]:
    """The documents of a .jsonl or .txt file as samples of bytes, like those of a job without a tokenizer, for Alone.
    The token 256 is before and after each document; a long one is cut into pieces, each of which begins with the last
    token of the piece before."""
    with open(path, encoding="utf-8", newline="\n") as f:
        texts = [json.loads(line)[field] for line in f if line.strip()] if path.endswith(".jsonl") else [f.read()]
    samples = []
    for text in texts:
        tokens = np.concatenate(([_END], np.frombuffer(text.encode(), np.uint8), [_END])).astype("<i4")
        last = max(len(tokens) - min(context, _PIECE_MIN), 0)  # the last piece begins here, or earlier
        begins = [min(i, last) for i in range(0, len(tokens) - 1, context - 1)]
        samples += [Sample(tokens[i:i + context].tobytes(), text=True) for i in begins]
    return samples


class Alone:
    """The data of a script that no worker has started: samples, repeated for `steps` steps of `batch` samples."""

    def __init__(self, samples: Sequence[Sample] = (), steps: int = 100, batch: int = 8, seed: int = 0):
        self.samples, self.steps, self.batch, self.seed = samples, steps, batch, seed


class _Order:
    """The common part of phases and evaluations: their samples."""

    def __init__(self, island: "Island", order: _lib.Order):
        self._island = island
        self.kind = {_lib.TEXTS: "texts", _lib.IMAGES: "images"}.get(order.samples_kind, "none")
        self.samples: int = order.samples  # their number
        self.batch: int = order.batch

    def _take(self, most: int) -> list[Sample]:
        got = (_lib.Sample * most)()
        n = check(lib.skerry_samples(self._island._handle, got, most))
        text = self.kind == "texts"
        return [Sample(ctypes.string_at(s.data, s.bytes) if s.bytes else b"", s.cls, text) for s in got[:n]]

    def batches(self, collate: Callable[[list[Sample]], Any] | None = None, batch: int | None = None) -> Iterator[Any]:
        """All samples, each once, in batches of the job's size; collate turns a list of samples into a batch."""
        while True:
            samples = self._next(batch or self.batch or 1)
            if not samples:
                return
            yield collate(samples) if collate else samples

    def _next(self, most: int) -> list[Sample]:
        return self._take(most)


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of a loader, begun again whenever it is exhausted."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise _lib.Error("the loader has no batches")


class Phase(_Order):
    """One replica's training between two exchanges of weights, bounded by steps or by seconds."""

    def __init__(self, island: "Island", order: _lib.Order):
        super().__init__(island, order)
        self.round: int = order.round
        self.path: int = order.path
        self.replica: int = order.replica
        self.replicas: int = order.replicas
        self.steps: int = order.steps  # the length of the phase; 0: it is bounded by seconds
        self.seconds: int = order.seconds
        self.first_step: int = order.first_step  # the number of this replica's steps before the phase
        self.total_steps: int = order.total_steps
        self.seed: int = order.seed
        self.goes_on: bool = order.goes_on  # the optimiser already has the state of this replica
        self.precision: str = (order.precision or b"auto").decode()
        self.done_steps = 0
        self._given = 0  # samples, alone
        self._since = 0  # batches given since the last step
        self.alone = island.alone
        if self.alone:
            self.steps, self.batch, self.seed = island._solo.steps, island._solo.batch, island._solo.seed
            self.kind, self.samples = "texts", len(island._solo.samples)
            self.total_steps = self.steps

    @property
    def more(self) -> bool:
        """True while the phase needs another step."""
        return self.done_steps < self.steps if self.alone else lib.skerry_more(self._island._handle)

    @property
    def lr_scale(self) -> float:
        """The factor of the learning rate at the next step, by the job's schedule."""
        return lib.skerry_lr_scale(self._island._handle)

    @property
    def fraction(self) -> float:
        """The part of the job's steps that is done, 0 to 1; 0 if its length is not known.  With outer.seconds an estimate."""
        return min(1.0, (self.first_step + self.done_steps) / self.total_steps) if self.total_steps else 0.0

    def _goes_on(self) -> bool:
        """Whether another batch is to be given: a step that has begun is made to its end, else its gradients of weights that
        are no more would be a part of the next phase's first step."""
        return self._since > 0 or self.more

    def _next(self, most: int) -> list[Sample]:
        if not self._goes_on():
            return []
        if not self.alone:
            self._since += 1
            return self._take(most)
        samples = self._island._solo.samples
        if not samples:
            raise _lib.Error("no worker has started this script, and join() got no samples to train on alone: give "
                             "alone=skerry.Alone(samples)")
        order = np.random.default_rng(self.seed).permutation(len(samples))
        self._count()
        at = self._given
        self._given += most
        return [samples[order[(at + i) % len(samples)]] for i in range(most)]

    def _count(self) -> None:
        """Counts a batch that is about to be given."""
        if self._since == _BATCHES_MAX:
            raise _lib.Error(f"phase.step() was not called in {_BATCHES_MAX} batches; call it after each optimizer.step(), or "
                             "the phase never ends")
        self._since += 1

    def limit(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of the script's own loader (data: {kind: none}) from its first on, repeated until the phase ends.  An
        iterator goes on where the phase before has ended, if it is endless."""
        batches = endless(loader)
        while self._goes_on():
            batch = next(batches)
            self._count()
            yield batch

    def step(self, loss: Any, samples: int, lr: float = 0.0, grad_norm: float = 0.0, **numbers: float) -> bool:
        """Reports a step.  numbers: up to 16 further values, which become series of the job with these names.  Returns True
        if newer weights have come into this process's model (outer.fragments); other processes of the script lack them."""
        handle = self._island._handle
        for name, value in numbers.items():
            check(lib.skerry_number(handle, name.encode(), float(value)))
        progress = _lib.Progress(float(loss), int(samples), lr, grad_norm)
        exchange = self._island._exchange
        exchange.taken = False
        code = lib.skerry_step(handle, ctypes.byref(progress))
        if exchange.error is not None:
            raise exchange.error
        check(code)
        self.done_steps += 1
        self._since = 0
        if self.alone and (self.done_steps % 10 == 0 or self.done_steps == self.steps):
            print(f"step {self.done_steps} of {self.steps}: loss {float(loss):.4f}", file=sys.stderr)
        return exchange.taken


class Evaluation(_Order):
    """An order to compute the loss of held-out samples."""

    def __init__(self, island: "Island", order: _lib.Order):
        super().__init__(island, order)
        self._loss, self._units = 0.0, 0
        self._numbers: dict[str, tuple[float, int]] = {}  # the sum over samples, and their number

    def add(self, loss: Any, units: int, samples: int, **numbers: float) -> None:
        """Adds a batch.  loss: the sum over its units, which are samples or tokens.  numbers: up to 16 further values, each
        the mean over the batch; their means over all samples become series of the job with these names."""
        self._loss += float(loss)
        self._units += int(units)
        for name, value in numbers.items():
            total, n = self._numbers.get(name, (0.0, 0))
            self._numbers[name] = total + float(value) * samples, n + samples
        progress = _lib.Progress(float(loss) / max(units, 1), int(samples), 0, 0)
        check(lib.skerry_step(self._island._handle, ctypes.byref(progress)))

    def _tell(self) -> None:
        for name, (total, n) in self._numbers.items():
            check(lib.skerry_number(self._island._handle, name.encode(), total / n if n else math.nan))


class Drawing:
    """An order to draw: a text that continues a prompt, or a grid of pictures of classes."""

    def __init__(self, order: _lib.Order):
        self.prompt = (order.prompt or b"").decode("utf-8", "replace")
        self.tokens: int = order.tokens  # the length of the text; 0: draw pictures
        self.temperature: float = order.temperature
        self.top_p: float = order.top_p
        self.seed: int = order.seed
        self.labels = [order.labels[i] for i in range(order.n_labels)]
        self.columns: int = order.columns


def _is_of_memory(error: Any) -> bool:
    """Whether an exception says that memory is short, the host's or a device's (PyTorch's OutOfMemoryError)."""
    return (isinstance(error, MemoryError) or any(c.__name__ == "OutOfMemoryError" for c in type(error).__mro__)
            or "DefaultCPUAllocator: can't allocate memory" in str(error))


def _reason(kind: Any, error: Any, trace: Any) -> bytes:
    """One line, made of several where PyTorch's text has them, with the place in the script: the traceback is only in the
    worker's log."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == main]
    place = f" ({os.path.basename(str(main))}, line {lines[-1]})" if lines else ""
    said = " ".join(f"{kind.__name__}: {error}".split()).encode("utf-8", "replace")
    return said[:_REASON_MAX].decode("utf-8", "ignore").encode() + place.encode("utf-8", "replace")


def _memory(write: Callable[[BinaryIO], Any]) -> int:
    fd = os.memfd_create("skerry", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as f:
        write(f)
    return fd


def _write_png(picture: Any, f: BinaryIO) -> None:
    if isinstance(picture, (bytes, bytearray)):
        f.write(picture)
    else:
        picture.save(f, format="PNG")  # an image of Pillow


class _Exchange:
    """The exchange of weights in mid-phase, which happens inside skerry_step()."""

    def __init__(self, items: list[_model.Item]):
        self.items = items
        self.taken = False
        self.error: BaseException | None = None
        self.give, self.take = _lib.Exchange(self._give), _lib.Exchange(self._take)

    def _copy(self, copy: Callable[[list[_model.Item]], None], i: int) -> int:
        try:
            copy([self.items[i]])
        except BaseException as e:  # phase.step() raises it: an exception cannot pass through C
            self.error = e
            return -1
        return 0

    def _give(self, _: Any, i: int) -> int:
        return self._copy(_model.store, i)

    def _take(self, _: Any, i: int) -> int:
        self.taken = True
        return self._copy(_model.load, i)


class Island:
    """The connection of a model with a worker; made by join()."""

    def __init__(self, model: Any, optimizer: Any, alone: Alone | None, exchanges: bool | None):
        self._model, self._items = model, _model.items_of(model)
        self._exchange = _Exchange(self._items)
        self._exchanges = int(os.environ.get("WORLD_SIZE", "1")) == 1 if exchanges is None else exchanges
        self._handle = ctypes.c_void_p()
        self._pid = os.getpid()
        self._solo = alone or Alone()
        self._evaluate: Callable[[Evaluation], Any] | None = None
        self._sample: Callable[[Drawing], Any] | None = None
        self._save: Callable[[BinaryIO], Any] | None = None
        self._load: Callable[[BinaryIO | None], Any] | None = None
        self.alone = "SKERRY_TRAINER_FD" not in os.environ
        if optimizer is not None:
            self._take_optimizer(optimizer)

    def _take_optimizer(self, optimizer: Any) -> None:
        torch = sys.modules["torch"]

        def load(f: BinaryIO | None) -> None:
            optimizer.state.clear()
            if f is not None:
                # From any device: load_state_dict() moves it to the parameters.
                state = torch.load(f, map_location="cpu", weights_only=True)
                optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        self._save, self._load = lambda f: torch.save(optimizer.state_dict()["state"], f), load

    # ---- further abilities of a script ----

    def evaluate(self, function: Callable[[Evaluation], Any]) -> Callable[[Evaluation], Any]:
        """Decorator of the function that computes held-out losses and calls evaluation.add() for each batch."""
        self._evaluate = function
        return function

    def sample(self, function: Callable[[Drawing], Any]) -> Callable[[Drawing], Any]:
        """Decorator of the function that draws and returns a text or a picture (PNG bytes or an image of Pillow)."""
        self._sample = function
        return function

    def state(self, save: Callable[[], bytes], load: Callable[[bytes | None], None]) -> None:
        """Sets the functions that keep the optimiser's state: save() returns it; load() restores it, or begins anew with None."""
        self._save, self._load = lambda f: f.write(save()), lambda f: load(f and f.read())

    # ---- the conversation ----

    def _join(self) -> None:
        self._items = self._exchange.items = _model.items_of(self._model)  # the script may have changed them since
        tensors = (_lib.Tensor * len(self._items))()
        names = [item.name.encode() for item in self._items]
        for tensor, item, name in zip(tensors, self._items, names):
            shape = item.shape
            if len(shape) > _lib.RANK_MAX:
                raise _lib.Error(f"{item.name} has {len(shape)} dimensions, at most {_lib.RANK_MAX} are possible")
            tensor.name, tensor.dtype, tensor.rank, tensor.buffer = name, item.dtype, len(shape), item.buffer
            tensor.shape[:len(shape)] = shape
        options = _lib.Options(b"skerry-python 0.1.0", self._evaluate is not None, self._sample is not None,
                               self._save is not None and self._load is not None)
        if self._exchanges:
            options.give, options.take = self._exchange.give, self._exchange.take
        check(lib.skerry_join(ctypes.byref(options), tensors, len(tensors), ctypes.byref(self._handle)))
        self._tell_of_the_end()
        if self.alone:
            return
        for i, item in enumerate(self._items):
            address = lib.skerry_weights(self._handle, i)
            if address:
                _model.share(item, address)

    def _fail(self, kind: Any, error: Any, trace: Any) -> None:
        if self._handle and os.getpid() == self._pid:  # a forked process ends by itself
            fail = lib.skerry_lack_memory if _is_of_memory(error) else lib.skerry_fail
            fail(self._handle, _reason(kind, error, trace))

    def _tell_of_the_end(self) -> None:
        """An exception that ends the script is told to the worker also where no `with` is around it."""
        hook = sys.excepthook

        def tell(kind: Any, error: Any, trace: Any) -> None:
            self._fail(kind, error, trace)
            hook(kind, error, trace)
        sys.excepthook = tell

    def _done(self, **fields: Any) -> None:
        result = _lib.Result(-1, 0.0, 0, None, -1)
        for name, value in fields.items():
            setattr(result, name, value)
        try:
            check(lib.skerry_done(self._handle, ctypes.byref(result)))
        finally:
            for fd in (result.state_fd, result.picture_fd):
                if fd >= 0:
                    os.close(fd)

    def _restore(self, order: _lib.Order) -> None:
        if order.goes_on or self._load is None or self.alone:
            return
        if order.state_fd < 0:
            self._load(None)
            return
        with os.fdopen(os.dup(order.state_fd), "rb") as f:
            f.seek(0)
            self._load(f)

    def _serve(self, order: _lib.Order) -> None:
        """Carries out an order that is not a phase."""
        if order.kind == _lib.BEGIN:
            _model.store(self._items)
            self._done()
            return
        _model.load(self._items)
        if order.kind == _lib.EVALUATE and self._evaluate:
            evaluation = Evaluation(self, order)
            self._evaluate(evaluation)
            evaluation._tell()
            self._done(loss_sum=evaluation._loss, units=evaluation._units)
        elif order.kind == _lib.DRAW and self._sample:
            drawn = self._sample(Drawing(order))
            if isinstance(drawn, str):
                self._done(text=drawn.encode())
            else:
                self._done(picture_fd=_memory(lambda f: _write_png(drawn, f)))
        else:
            raise _lib.Error(f"the worker gave an order ({order.kind}) that this script cannot carry out")

    def phases(self) -> Iterator[Phase]:
        """Waits for work and yields phases, with their weights loaded.  When the body of the loop ends, the model's weights go
        to the worker."""
        if not self._handle:
            self._join()
        if self.alone:
            print("skerry: no worker has started this script; it trains alone", file=sys.stderr)
        while True:
            order = _lib.Order()
            if check(lib.skerry_next(self._handle, ctypes.byref(order))) == _lib.END:
                return
            if order.kind != _lib.PHASE:
                self._serve(order)
                continue
            _model.load(self._items)
            self._restore(order)
            yield Phase(self, order)
            _model.store(self._items)
            self._done(state_fd=_memory(self._save) if order.wants_state and self._save else -1)

    def __enter__(self) -> "Island":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self._fail(kind, error, trace)
        for item in self._items:
            item.shared = None
        lib.skerry_leave(self._handle)
        self._handle = ctypes.c_void_p()


def join(model: Any, optimizer: Any = None, alone: Alone | None = None, exchanges: bool | None = None) -> Island:
    """Makes an island of a model: a PyTorch module, or a dict of NumPy arrays.  The state of a PyTorch optimizer is kept from
    phase to phase, and travels if the job says so.  alone: the data of a run without a worker.  exchanges: whether weights may
    be exchanged in phase.step() (outer.fragments); None: yes if the script is one process (by WORLD_SIZE)."""
    rank = os.environ.get("SKERRY_TRAINER_RANK")
    if rank:
        raise _lib.Error(f"rank {rank} of skerry.torchrun called skerry.join(), but only rank 0 joins; it gives its weights and "
                         "batches to the other ranks, as examples/trainer-ddp does")
    return Island(model, optimizer, alone, exchanges)
