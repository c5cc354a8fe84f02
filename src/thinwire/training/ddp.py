"""``compress``: DDP's gradients through thinwire, one bucket after another while backward goes on.

DDP hands over each bucket as soon as its gradients are ready; the hook queues it for the worker thread and returns a future,
so backward continues while the worker encodes and sends. Nothing waits inside a future's callback: on gloo that hangs.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Mapping
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
from thinwire.training.payoff import Payoff

MIN_ELEMENTS: Final = 256
STATE_VERSION: Final = 1


def compress(
    model: torch.nn.Module,
    codec: str | Codec = "int8",
    feedback: bool | None = None,
    min_elements: int = MIN_ELEMENTS,
    streams: int | None = None,
) -> Handle:
    """Send the gradients of a DistributedDataParallel ``model`` with ``codec``; call it once, on every rank.

    Parameters with one dimension or fewer than ``min_elements`` elements go uncompressed (fp32); so does what
    ``codec="none"`` names. ``feedback=True`` adds what the wire lost of a gradient to the next one; None takes the codec's own
    default, which is off for every codec so far (docs/numerics.md says why). ``streams`` connections a pair of ranks; None lets a
    probe of the network choose. Returns the handle that measures and removes. After a few steps, rank 0 logs a warning if
    uncompressed gradients would be faster on this network.

    Raises ConfigError for a model that is not wrapped in DDP, already compressed, has sparse gradients or a dtype that is
    not a float, and for bad arguments; DisagreementError on every rank if the ranks' arguments or parameters differ.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"model is a {type(model).__name__}; allowed: torch.nn.parallel.DistributedDataParallel "
            "(wrap it first: DistributedDataParallel(model))"
        )
    if feedback not in (None, True, False):
        raise ConfigError(f"feedback={feedback!r} is not allowed; allowed: None, True, False")
    if isinstance(min_elements, bool) or not isinstance(min_elements, int) or min_elements < 0:
        raise ConfigError(f"min_elements={min_elements!r} is out of range; allowed: 0 or more")
    return Handle(model, resolve(codec), bool(feedback), min_elements, streams)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """How a model's gradient elements travel."""

    compressed: int
    uncompressed: int
    names_uncompressed: tuple[str, ...]


class Handle:
    """One compressed model: what was sent, its residuals, and the way back. Made by :func:`compress`."""

    def __init__(
        self, model: DistributedDataParallel, codec: Codec, feedback: bool, min_elements: int, streams: int | None = None
    ) -> None:  # fmt: skip
        self.codec, self.feedback, self.min_elements = codec, feedback, min_elements
        self._parameters = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
        self._names = {id(p): name for name, p in self._parameters.items()}
        _check_parameters(self._parameters)
        slot: _Slot | None = getattr(model, "_thinwire", None)
        if slot is not None and slot.handle.active:
            raise ConfigError("model is compressed already; allowed: one handle a model (call its remove() first)")
        self._transport, self._worker = worker_of(model.process_group, streams)
        self._recorder = Recorder()
        self._reducer = Reducer(self._transport, codec, self._recorder)
        self._worker.submit(self._agree).result()
        sizes = {name: p.numel() for name, p in self._parameters.items()}
        self._residuals = Residuals(sizes) if feedback and not isinstance(codec, Raw) else None
        self._layouts: list[tuple[str, ...]] = []
        self._ready_at = self._busy = 0.0
        link = self._transport.link
        # One rank has no link, and NCCL's is not probed.
        watched = self.share.compressed and math.isfinite(link.rate)
        self._payoff = Payoff(codec.name, sum(sizes.values()), self._transport.size, link) if watched else None
        self.active = True
        set_num_threads(max(1, torch.get_num_threads()))
        _register(model, self)
        if self._transport.rank == 0:
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

    def stats(self) -> Stats:
        """What this rank sent and received, and the seconds by phase, since the last call."""
        return self._recorder.take()

    def remove(self) -> None:
        """Go back to DDP's own fp32 all-reduce from the next step on. A second call does nothing."""
        self.active = False

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: codec and residuals by parameter name. Save it beside the model's, one a rank."""
        kept = {} if self._residuals is None else self._residuals.state_dict()
        residuals = {name: value for name, value in kept.items() if self._compressed(self._parameters[name])}
        return {"version": STATE_VERSION, "codec": self.codec.spec(), "residuals": residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over :meth:`state_dict` of the same model, in any bucket layout. Raises ConfigError if it does not fit."""
        if state.get("version") != STATE_VERSION:
            raise ConfigError(f"state has version {state.get('version')!r}; allowed: {STATE_VERSION}")
        if state["codec"] != self.codec.spec():
            raise ConfigError(f"state is of codec {state['codec']!r}; allowed: {self.codec.spec()!r}")
        if self._residuals is not None:
            exact = {n: torch.zeros(p.numel()) for n, p in self._parameters.items() if not self._compressed(p)}
            self._residuals.load_state_dict({**exact, **state["residuals"]})
        elif state["residuals"]:
            raise ConfigError("state has residuals, but feedback is off; allowed: compress(..., feedback=True)")

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """DDP's communication hook: queues the bucket and returns at once."""
        buffer, parameters, last = bucket.buffer(), bucket.parameters(), bucket.is_last()
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

        self._worker.submit(task)
        return future

    def _reduce(self, buffer: torch.Tensor, parameters: list[torch.Tensor], last: bool) -> None:
        start = time.perf_counter()
        layout = layout_of([self._names[id(p)] for p in parameters], parameters, self._compressed)
        payload = as_payload(buffer)
        if self.active and layout.compressed:
            self._reduce_compressed(payload, layout)
        else:
            self._reducer.all_reduce_uncompressed(payload)
        if payload.data_ptr() != buffer.data_ptr():
            buffer.copy_(payload)
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
        residuals.seen(payload)
        self._layouts.append(names)

    def _end_step(self) -> None:
        if self._residuals is not None:
            self._residuals.commit(self._layouts)
            self._layouts = []
        exposed = max(0.0, time.perf_counter() - self._ready_at)
        self._recorder.add(steps=1, exposed_seconds=exposed)
        line = self._payoff.step(exposed, self._busy) if self._payoff is not None and self.active else None
        self._busy = 0.0
        if line is not None and self._transport.rank == 0:
            logging.getLogger("thinwire").warning(line)

    def _compressed(self, parameter: torch.Tensor) -> bool:
        if isinstance(self.codec, Raw):
            return False
        return parameter.dim() > 1 and parameter.numel() >= self.min_elements

    def _agree(self) -> None:
        listing = ",".join(f"{name}:{p.dtype}{list(p.shape)}" for name, p in self._parameters.items())
        facts = {"codec": self.codec.spec(), "feedback": self.feedback, "min_elements": self.min_elements}
        agree(self._transport, "compress", **facts, parameters=listing)


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


class _Slot:
    """The handle in force: what DDP hands to the hook as its state."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle


def _hook(state: _Slot, bucket: Any) -> Any:
    return state.handle.hook(bucket)


# DDP compares these with the types themselves, which annotations as strings are not.
_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
