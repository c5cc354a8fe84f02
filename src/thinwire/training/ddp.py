"""``compress``: DDP's gradients through thinwire, one bucket after another while backward goes on.

DDP hands over each bucket as soon as its gradients are ready; the hook queues it for the worker thread and returns a future,
so backward continues while the worker encodes and sends. Nothing waits inside a future's callback: on gloo that hangs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

import torch
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]  documented there
from torch.nn.parallel import DistributedDataParallel

from thinwire.codec import codec as resolve
from thinwire.codec.base import Codec
from thinwire.codec.cast import Raw
from thinwire.collective.handshake import agree
from thinwire.errors import ConfigError
from thinwire.feedback import Residuals
from thinwire.kernels.threads import set_num_threads
from thinwire.metrics import Recorder, Stats
from thinwire.overlap import worker_of
from thinwire.reducer import Reducer
from thinwire.training.bucket import Layout, as_payload, layout_of, put_back, set_aside
from thinwire.training.guard import guard
from thinwire.training.payoff import Payoff

MIN_ELEMENTS: Final = 256
STATE_VERSION: Final = 1


def compress(
    model: torch.nn.Module,
    codec: str | Codec = "int8",
    feedback: bool | None = None,
    min_elements: int = MIN_ELEMENTS,
    streams: int | None = None,
    timeout: float | None = None,
) -> Handle:
    """Send the gradients of a DistributedDataParallel ``model`` with ``codec``; call it once, on every rank.

    Parameters with one dimension or fewer than ``min_elements`` elements go uncompressed (fp32); so does what
    ``codec="none"`` names. ``feedback=True`` adds what the wire lost of a gradient to the next one; None takes the codec's own
    default, which is off for every codec so far (docs/numerics.md says why). ``streams`` connections a pair of ranks; None lets a
    probe of the network choose. ``timeout`` seconds without a byte from a rank end the run; None takes the process group's.
    Returns the handle that measures and removes. After a few steps, rank 0 logs a warning if
    uncompressed gradients would be faster on this network.

    Raises ConfigError for a model that is not wrapped in DDP, already compressed, has sparse gradients or a dtype that is
    not a float, and for bad arguments; DisagreementError on every rank if the ranks' arguments or parameters differ.
    Then ``backward()`` raises PeerLost or CollectiveTimeout, which name the rank, if one is lost.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile(DDP)
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"model is a {type(model).__name__}; allowed: torch.nn.parallel.DistributedDataParallel "
            "(wrap it first: DistributedDataParallel(model))"
        )
    if getattr(model, "_use_python_reducer", False):
        raise ConfigError(
            "model was made with torch._dynamo.config.optimize_ddp='python_reducer', which calls no communication hook; allowed: "
            "True or 'ddp_optimizer', set before DistributedDataParallel(model)"
        )
    if feedback not in (None, True, False):
        raise ConfigError(f"feedback={feedback!r} is not allowed; allowed: None, True, False")
    if isinstance(min_elements, bool) or not isinstance(min_elements, int) or min_elements < 0:
        raise ConfigError(f"min_elements={min_elements!r} is out of range; allowed: 0 or more")
    return Handle(model, resolve(codec), bool(feedback), min_elements, streams, timeout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """How a model's gradient elements travel."""

    compressed: int
    uncompressed: int
    names_uncompressed: tuple[str, ...]


class Handle:
    """One compressed model: what was sent, its residuals, and the way back. Made by :func:`compress`."""

    def __init__(
        self, model: DistributedDataParallel, codec: Codec, feedback: bool, min_elements: int, streams: int | None = None,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        self.codec, self.feedback, self.min_elements = codec, feedback, min_elements
        self._parameters = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
        # All of them: one that was frozen after DDP wrapped it is still in a bucket.
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        _check_parameters(self._parameters)
        slot: _Slot | None = getattr(model, "_thinwire", None)
        if slot is not None and slot.handle.active:
            raise ConfigError("model is compressed already; allowed: one handle a model (call its remove() first)")
        self.transport, self._worker = worker_of(model.process_group, streams, timeout)
        self._recorder = Recorder()
        self._reducer = Reducer(self.transport, codec, self._recorder)
        self._worker.submit(self._agree).result()
        sizes = {name: p.numel() for name, p in model.module.named_parameters()}
        self._residuals = Residuals(sizes) if feedback and not isinstance(codec, Raw) else None
        self._layouts: list[tuple[str, ...]] = []
        self._tasks: list[Future[None]] = []
        self._scaler: Any = None
        self._scale = 1.0
        self._ready_at = self._busy = 0.0
        link = self.transport.link
        # One rank has no link, and NCCL's is not probed.
        watched = self.share.compressed and math.isfinite(link.rate)
        self._payoff = Payoff(codec.name, self._trained(), self.transport.size, link) if watched else None
        self.active = True
        self.finite = True
        """Whether all gradients of the last step were finite, the same on all ranks; kept with feedback only."""
        set_num_threads(max(1, torch.get_num_threads()))
        _register(model, self)
        if self.transport.rank == 0:
            logging.getLogger("thinwire").info(self.summary())

    @property
    def share(self) -> Share:
        """Elements that travel compressed and uncompressed, and the names of the latter."""
        plain = {name: p.numel() for name, p in self._parameters.items() if not self._compressed(p)}
        total = sum(p.numel() for p in self._parameters.values())
        uncompressed = sum(plain.values())
        return Share(compressed=total - uncompressed, uncompressed=uncompressed, names_uncompressed=tuple(plain))

    def summary(self) -> str:
        """One line for people: codec, bits, threshold, and what goes uncompressed."""
        share = self.share
        total = share.compressed + share.uncompressed
        if not share.compressed:
            return f"{self.codec.spec()}: all {total:,} gradient elements uncompressed (fp32)"
        return (
            f"{self.codec.spec()}: {share.compressed:,} of {total:,} gradient elements compressed to "
            f"{self.codec.bits_per_element(share.compressed):.3f} bits, feedback {'on' if self.feedback else 'off'}; "
            f"{share.uncompressed:,} uncompressed (fewer than {self.min_elements} elements or one dimension): "
            f"{', '.join(share.names_uncompressed) or 'none'}"
        )

    def follow(self, scaler: Any) -> None:
        """Keep residuals in units of the gradients while ``scaler``, a torch.amp.GradScaler, changes its loss scale."""
        if not callable(getattr(scaler, "get_scale", None)):
            raise ConfigError(f"scaler is a {type(scaler).__name__}; allowed: a torch.amp.GradScaler")
        self._scaler, self._scale = scaler, float(scaler.get_scale())

    def rescale(self, factor: float) -> None:
        """Multiply residuals by ``factor``, as gradients are when a loss scale changes that no GradScaler keeps."""
        if not (isinstance(factor, (int, float)) and 0 < factor < math.inf):
            raise ConfigError(f"factor={factor!r} is out of range; allowed: above 0, finite")
        if self._residuals is not None:
            self._residuals.rescale(factor)

    def _follow_scale(self) -> None:
        if self._scaler is None:
            return
        scale = float(self._scaler.get_scale())
        if scale != self._scale and scale > 0:
            self.rescale(scale / self._scale)
            self._scale = scale

    def stats(self) -> Stats:
        """What this rank sent and received, and the seconds by phase, since the last call."""
        return self._recorder.take()

    def remove(self) -> None:
        """Go back to DDP's own fp32 all-reduce from the next step on. A second call does nothing."""
        self.active = False

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: codec and residuals by parameter name. Save it beside the model's, one a rank."""
        kept = {} if self._residuals is None else self._residuals.state_dict()
        names = self._compressed_names()
        residuals = {name: value for name, value in kept.items() if name in names}
        return {"version": STATE_VERSION, "codec": self.codec.spec(), "residuals": residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over :meth:`state_dict` of the same model, in any bucket layout. Raises ConfigError if it does not fit."""
        if state.get("version") != STATE_VERSION:
            raise ConfigError(f"state has version {state.get('version')!r}; allowed: {STATE_VERSION}")
        if state["codec"] != self.codec.spec():
            raise ConfigError(f"state is of codec {state['codec']!r}; allowed: {self.codec.spec()!r}")
        if self._residuals is not None:
            names = self._compressed_names()
            zeros = {n: torch.zeros(size) for n, size in self._residuals.sizes.items() if n not in names}
            self._residuals.load_state_dict({**zeros, **state["residuals"]})
        elif state["residuals"]:
            raise ConfigError("state has residuals, but feedback is off; allowed: compress(..., feedback=True)")

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """DDP's communication hook: queues the bucket and returns at once."""
        buffer, parameters, last = bucket.buffer(), bucket.parameters(), bucket.is_last()
        if not self._tasks:
            self._follow_scale()  # no task is under way, and all ranks see the same scale
        devices = [buffer.device] if buffer.is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        if buffer.is_cuda:
            # The worker reads the gradients from another thread; what fills them is queued on this one's stream.
            torch.cuda.current_stream(buffer.device).synchronize()
        if last:
            self._ready_at = time.perf_counter()

        def task() -> None:
            try:
                with torch.no_grad():
                    self._reduce(buffer, parameters, last)
            except BaseException as error:  # DDP's wait must end, whatever happened
                future.set_exception(error)  # pyright: ignore[reportArgumentType]  torch says Exception
                raise
            future.set_result(buffer)

        self._tasks.append(self._worker.submit(task))
        if last:
            self._raise_after_backward()
        return future

    def _raise_after_backward(self) -> None:
        """Have ``backward()`` raise what went wrong: DDP itself would only say that an exception is no tensor."""
        tasks, self._tasks = self._tasks, []

        def look() -> None:
            for one in tasks:
                one.result()

        # Outside of backward, as where join() stands in for a rank that has ended, DDP waits for the futures themselves.
        with contextlib.suppress(RuntimeError):
            engine: Any = torch.autograd.Variable._execution_engine  # pyright: ignore[reportPrivateUsage]  as FSDP does
            engine.queue_callback(look)

    def _reduce(self, buffer: torch.Tensor, parameters: list[torch.Tensor], last: bool) -> None:
        start = time.perf_counter()
        self.transport.watch.begin("a gradient bucket")
        layout = layout_of([self._names[id(p)] for p in parameters], parameters, self._compressed)
        payload = as_payload(buffer)
        if self.active and layout.compressed:
            self._reduce_compressed(payload, layout)
        else:
            self._reducer.all_reduce_uncompressed(payload)
        if payload.data_ptr() != buffer.data_ptr():
            buffer.copy_(payload)
        if self._residuals is not None:
            # Whatever makes a step fail counts: parameters that travel uncompressed, and what overflows in the bucket's dtype.
            self._residuals.seen(payload if buffer.dtype == torch.float32 else buffer.cpu())
        self._busy += time.perf_counter() - start
        if last:
            self._end_step()

    def _reduce_compressed(self, payload: torch.Tensor, layout: Layout) -> None:
        residuals = self._residuals
        if residuals is not None:
            payload.add_(residuals.current(layout.names))
        exact = set_aside(payload, layout.exact)
        finish = None if exact is None else self._reducer.start_uncompressed(exact)
        if residuals is None:
            self._reducer.all_reduce(payload, "mean")
        else:
            self._reduce_with_feedback(payload, layout.names, residuals)
        if exact is not None and finish is not None:
            finish()
            put_back(payload, layout.exact, exact)

    def _reduce_with_feedback(self, payload: torch.Tensor, names: tuple[str, ...], residuals: Residuals) -> None:
        lost = residuals.following(names)
        self._recorder.add(sent_squares=float(payload.dot(payload)))
        self._reducer.all_reduce(payload, "mean", lost)
        self._recorder.add(lost_squares=float(lost.dot(lost)))
        self._layouts.append(names)

    def _end_step(self) -> None:
        if self._residuals is not None:
            self.finite = self._residuals.commit(self._layouts)
            self._layouts = []
        exposed = max(0.0, time.perf_counter() - self._ready_at)
        self._recorder.add(steps=1, exposed_seconds=exposed)
        line = self._payoff.step(exposed, self._busy) if self._payoff is not None and self.active else None
        self._busy = 0.0
        if line is not None and self.transport.rank == 0:
            logging.getLogger("thinwire").warning(line)

    def _trained(self) -> int:
        return sum(p.numel() for p in self._parameters.values())

    def _compressed_names(self) -> set[str]:
        return {name for name, p in self._parameters.items() if self._compressed(p)}

    def _compressed(self, parameter: torch.Tensor) -> bool:
        if isinstance(self.codec, Raw):
            return False
        return parameter.dim() > 1 and parameter.numel() >= self.min_elements

    def _agree(self) -> None:
        listing = ",".join(f"{name}:{p.dtype}{list(p.shape)}" for name, p in self._parameters.items())
        facts = {"codec": self.codec.spec(), "feedback": self.feedback, "min_elements": self.min_elements}
        agree(self.transport, "compress", **facts, parameters=listing)


def _check_parameters(parameters: Mapping[str, torch.Tensor]) -> None:
    if not parameters:
        raise ConfigError("model has no parameter that requires a gradient; allowed: at least one")
    for name, parameter in parameters.items():
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ConfigError(f"parameter {name} has dtype {parameter.dtype}; allowed: float32, float16, bfloat16")


def _register(model: DistributedDataParallel, handle: Handle) -> None:
    """Give DDP the hook. It keeps one for good, so a later handle of the same model takes over the first one's."""
    previous: _Slot | None = getattr(model, "_thinwire", None)
    if previous is not None:
        previous.handle = handle
        return
    slot = _Slot(handle)
    try:
        model.register_comm_hook(slot, _hook)
    except RuntimeError as error:
        raise ConfigError(f"model has a communication hook already; allowed: none before compress ({error})") from None
    vars(model)["_thinwire"] = slot
    guard(model, handle.transport)


class _Slot:
    """The handle in force: what DDP hands to the hook as its state."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle


def _hook(state: _Slot, bucket: Any) -> Any:
    return state.handle.hook(bucket)


# DDP compares these with the types themselves, which annotations as strings are not.
_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
