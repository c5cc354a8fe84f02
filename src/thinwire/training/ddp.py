"""``compress``: DDP's gradients through thinwire, one bucket after another while backward goes on.

DDP hands over each bucket as soon as its gradients are ready; the hook queues it for the worker thread and returns a future,
so backward continues while the worker encodes and sends. Nothing waits inside a future's callback: on gloo that hangs.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire.codec.cast import Raw
from thinwire.collective.handshake import agree
from thinwire.controller import Controller
from thinwire.errors import ConfigError, DisagreementError
from thinwire.feedback.forms import Feedback
from thinwire.feedback.specs import form_of, spec_of
from thinwire.kernels.threads import set_num_threads
from thinwire.metrics import Recorder, Stats
from thinwire.overlap import worker_of
from thinwire.policy.choice import Choice, ChoiceLike, resolve
from thinwire.policy.patterns import Patterns
from thinwire.reducer import Reducer
from thinwire.training import state
from thinwire.training.assignment import assign, controller_for, kernels_of, tied_names
from thinwire.training.bucket import Held, as_payload, layout_of, regrouped, share_out
from thinwire.training.checks import check_arguments, check_parameters, compile_kernels, unwrapped
from thinwire.training.hook import is_compressed, raise_after_backward, register
from thinwire.training.optimizers import watch_optimizers
from thinwire.training.payoff import Payoff
from thinwire.training.reduction import Reduction, residuals_for
from thinwire.training.share import Share, share_of
from thinwire.training.verify import verify

MIN_ELEMENTS: Final = 256


def compress(
    model: torch.nn.Module,
    codec: ChoiceLike = "int8",
    feedback: bool | str | Feedback | None = None,
    min_elements: int = MIN_ELEMENTS,
    streams: int | None = None,
    timeout: float | None = None,
    verify_every: int | None = None,
) -> Handle:
    """Send the gradients of a DistributedDataParallel ``model`` with ``codec``; call it once, on every rank.

    Parameters with one dimension or fewer than ``min_elements`` elements go uncompressed (fp32); so does what
    ``codec="none"`` names. ``codec`` may also be ``{"*.bias": "none", "head.*": "int8", "*": "int4"}``, by the first pattern that
    matches a parameter's name; ``"auto:4"``, bits by layer of which the average is at most that; and ``("int2", "int4")``, to
    reduce and to gather with. ``feedback=True``, or "plain", adds what the wire lost of a gradient to the next one; "decay:0.95"
    and "average:0.9" add less (docs/training.md); ``DeepGradient(...)`` has momentum before the wire, for ``topk`` and SGD
    without momentum; None takes the codec's own default, which is on for ``topk`` only (docs/numerics.md says why).
    ``streams`` connections a pair of ranks; None lets a probe of the network choose. ``timeout`` seconds without a byte from a
    rank end the run; None takes the process group's.
    With ``verify_every=K``, every K-th backward hashes the parameters of all ranks and raises DisagreementError if they differ.
    Returns the handle that measures and removes. After a few steps, rank 0 logs a warning if
    uncompressed gradients would be faster on this network.

    Raises ConfigError for a model that is not wrapped in DDP, already compressed, has sparse gradients or a dtype that is
    not a float, and for bad arguments; DisagreementError on every rank if the ranks' arguments or parameters differ.
    Then ``backward()`` raises PeerLost or CollectiveTimeout, which name the rank, if one is lost.
    """
    ddp, made = unwrapped(model), resolve(codec)
    check_arguments(min_elements, verify_every)
    return Handle(ddp, made, form_of(feedback, *kernels_of(made)), min_elements, streams, timeout, verify_every)


class Handle:
    """One compressed model: what was sent, its residuals, and the way back. Made by :func:`compress`."""

    def __init__(
        self, model: DistributedDataParallel, codec: Choice, feedback: Feedback | None, min_elements: int,
        streams: int | None = None, timeout: float | None = None, verify_every: int | None = None,
    ) -> None:  # fmt: skip
        self.codec, self.feedback, self.min_elements = codec, feedback, min_elements
        # All of them: one that was frozen after DDP wrapped it is still in a bucket.
        every = dict(model.module.named_parameters())
        self._parameters = {name: p for name, p in every.items() if p.requires_grad}
        self._names = {id(p): name for name, p in every.items()}
        check_parameters(self._parameters)
        sparse = {id(one.weight) for one in model.module.modules() if getattr(one, "sparse", False) is True}
        self._verify_every, self._step = verify_every, 0
        self._assignment = assign(codec, every, min_elements, sparse, tied_names(model.module))
        self._controller = controller_for(codec, every, self._assignment)
        self._agreed = self._controller is None
        self._parted: DisagreementError | None = None
        if is_compressed(model):
            raise ConfigError("model is compressed already; allowed: one handle a model (call its remove() first)")
        self.transport, self._worker = worker_of(model.process_group, streams, timeout)
        self._recorder = Recorder()
        self._reducer = Reducer(self.transport, Raw(), self._recorder)
        compile_kernels(codec)
        self._worker.submit(self._agree).result()
        sizes = {name: p.numel() for name, p in every.items()}
        self._residuals = residuals_for(feedback, self._assignment, sizes, self.transport.size)
        self._tasks: list[Future[None]] = []
        self._told = self._unsynced = False
        self._model = weakref.ref(model)
        self._reduction = Reduction(self._reducer, self._residuals, bool(model.find_unused_parameters), self._controller)
        self._order: state.Order = []
        self._coming: state.Order = []
        self._replay: state.Order = []
        self._held: list[Held] = []
        self._scaler: Any = None
        self._scale = 1.0
        self._ready_at = self._busy = 0.0
        link = self.transport.link
        # One rank has no link, and NCCL's is not probed.
        watched = self.share.compressed and math.isfinite(link.rate)
        self._payoff = Payoff(codec.name, self.share.total, self.transport.size, link) if watched else None
        self.active = True
        self.finite = True
        """Whether all gradients of the last step were finite, the same on all ranks; kept with feedback only."""
        set_num_threads(max(1, torch.get_num_threads()))
        register(model, self, self.transport)
        if self._reduction.momenta is not None:
            watch_optimizers(self, self._parameters.values())
        if self.transport.rank == 0:
            logging.getLogger("thinwire").info(self.summary())

    @property
    def share(self) -> Share:
        """Elements that travel compressed and uncompressed, and the names of the latter."""
        return share_of(self._parameters, self._assignment)

    def assignment(self) -> list[dict[str, object]]:
        """A row a parameter, as of the next step: ``parameter``, ``elements``, ``codec`` and ``bits_per_element``."""
        return self._assignment.rows({name: p.numel() for name, p in self._parameters.items()})

    def summary(self) -> str:
        """One line for people: codecs, bits, threshold, and what goes uncompressed."""
        return self.share.summary(self.codec, spec_of(self.feedback), self.min_elements)

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
        """What this rank sent and received, the seconds by phase, and the share that went compressed, since the last call."""
        return dataclasses.replace(self._recorder.take(), codec=self.codec.spec())

    def remove(self) -> None:
        """Go back to DDP's own fp32 all-reduce from the next step on. A second call does nothing."""
        self.active = False

    def state_dict(self, ranks: int | None = None) -> dict[str, Any]:
        """This rank's state: save it beside the model's, one a rank, or all through torch.distributed.checkpoint.

        ``ranks=K`` gives a state of K ranks with residuals of zero instead, into which that module can load a checkpoint that K
        ranks saved; :meth:`load_state_dict` then takes it on any number of ranks.
        """
        kept = state.kept(self._residuals, self._parameters, self._compressed_names())
        made = state.pack(self._origin(), self.transport.rank, ranks or self.transport.size, kept, self._order, self._scale)
        named = [self.transport.rank] if ranks is None else range(ranks)
        made["messages"] = {f"rank{rank}": self._reducer.noise.messages for rank in named}
        made["policy"] = self._controller.state() if self._controller else ""
        if ranks is not None:
            made["residuals"] = {f"rank{r}": {n: torch.zeros_like(v) for n, v in kept.items()} for r in range(ranks)}
        return made

    def load_state_dict(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take over :meth:`state_dict` of the same model, in any bucket layout; a list has those of all ranks that saved.

        The next step is cut as the saved run's next one was, so that the trajectory is the same bit for bit. On another number of
        ranks, every rank takes the mean of all residuals given, or zero if some are missing, and the log says which. Raises
        ConfigError if it does not fit.
        """
        found, order, scale = state.unpack(states, self._origin(), self.transport.rank, self.transport.size)
        if self._residuals is not None and found is not None:
            state.take_over(self._residuals, found, self._parameters, self._compressed_names())
        elif self._residuals is not None:
            self._residuals.rescale(0.0)
        if self._residuals is not None:
            self._residuals.steps = state.feedback_steps(states)
        self._reducer.noise.messages = state.messages(states, self.transport.rank)
        if self._controller is not None:
            self._controller.load(state.policy(states))
            self._assignment, self._agreed = self._assignment.changed(self._controller.decision), False
            self._parted = None
        self._replay = order
        self._scale = scale  # the saved run's; the next step brings residuals to the scaler's

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """DDP's communication hook: queues the bucket and returns at once."""
        buffer, parameters, last = bucket.buffer(), bucket.parameters(), bucket.is_last()
        if not self._tasks:
            self._follow_scale()  # no task is under way, and all ranks see the same scale
            self._say_if_unsynced()
            self._step += 1
            if self._controller is not None and self.active and not self._agreed:
                self._tasks.append(self._worker.submit(self._agree_on_decision))
                self._agreed = True
            if self._verify_every and self.active and self._step % self._verify_every == 0:
                self._tasks.append(self._worker.submit(self._verify))
        devices = [buffer.device] if buffer.is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        if buffer.is_cuda:
            # The worker reads the gradients from another thread; what fills them is queued on this one's stream.
            torch.cuda.current_stream(buffer.device).synchronize()
        if last:
            self._ready_at = time.perf_counter()

        # Decided here: a later remove() must not reach what is on its way, or ranks would part.
        held = Held(buffer, [self._names[id(p)] for p in parameters], parameters, future, self.active, self._weight())
        self._coming.append(held.names)
        if self._replay or self._reduction.whole:
            self._held.append(held)
            if last:
                self._tasks.append(self._worker.submit(self._together(self._held)))
                self._held = []
        else:
            self._tasks.append(self._worker.submit(lambda: self._run([held], lambda: self._reduce(held, last))))
        if last:
            # After the first step, DDP orders its buckets anew.
            self._order, self._coming = self._replay or (self._coming if self._step > 1 else []), []
            self._replay = []
            tasks, self._tasks = self._tasks, []
            raise_after_backward(tasks)
        return future

    def _weight(self) -> float | None:
        """Within join(divide_by_initial_world_size=False), 1 on ranks that still have inputs and 0 on the others; else None."""
        model: Any = self._model()
        if model is None or not model._join_config.enable or model._divide_by_initial_world_size:
            return None
        return float(torch._C._current_graph_task_id() != -1)  # pyright: ignore[reportPrivateUsage]  is this a backward?

    def _run(self, held: Sequence[Held], task: Callable[[], None]) -> None:
        try:
            with torch.no_grad():
                if self._parted is not None:
                    raise self._parted
                task()
        except BaseException as error:  # DDP's wait must end, whatever happened
            for one in held:
                one.future.set_exception(error)  # pyright: ignore[reportArgumentType]  torch says Exception
            raise
        for one in held:
            one.future.set_result(one.buffer)

    def _together(self, held: list[Held]) -> Callable[[], None]:
        """All buckets of a step, cut as those of the saved run were if it is the first after loading."""
        order = regrouped(held, self._replay)

        def task() -> None:
            self._reduction.clip([one.buffer for one in held], self._scale)
            for number, group in enumerate(order):
                self._reduce(group, number == len(order) - 1)
            share_out(order, held)

        return lambda: self._run(held, task)

    def _reduce(self, held: Held, last: bool) -> None:
        buffer, parameters = held.buffer, held.parameters
        start = time.perf_counter()
        self.transport.watch.begin("a gradient bucket")
        if buffer.layout != torch.strided:
            self._reduce_sparse(buffer, last)
            return
        layout = layout_of(held.names, parameters, self._assignment)
        payload = as_payload(buffer)
        if held.active:
            self._reduction.mean(payload, layout)
        else:
            self._reducer.all_reduce_uncompressed(payload)
        if held.weight is not None:
            count = torch.tensor([held.weight])
            self._reducer.all_reduce_uncompressed(count)
            payload.div_(count)
        if held.active:
            self._reduction.finish(payload, layout)
        if payload.data_ptr() != buffer.data_ptr():
            buffer.copy_(payload)
        if self._residuals is not None:
            # Whatever makes a step fail counts: parameters that travel uncompressed, and what overflows in the bucket's dtype.
            self._residuals.seen(payload if buffer.dtype == torch.float32 else buffer.cpu())
        self._busy += time.perf_counter() - start
        if last:
            self._end_step()

    def _verify(self) -> None:
        self.transport.watch.begin("verification of the parameters")
        verify(self.transport, self._parameters, self._step)

    def _reduce_sparse(self, buffer: torch.Tensor, last: bool) -> None:
        """The gradient of an embedding with sparse=True is alone in its bucket: rows and their indices, uncompressed."""
        self._reducer.all_reduce_uncompressed(buffer)
        if self._residuals is not None:
            self._residuals.seen(buffer.coalesce().values())
        if last:
            self._end_step()

    def _end_step(self) -> None:
        self.finite = self._reduction.commit()
        if self._controller is not None and self.active:
            self._decide(self._controller)
        if not self._told and self.active:
            self._say_if_little()
        exposed = max(0.0, time.perf_counter() - self._ready_at)
        self._recorder.add(steps=1, exposed_seconds=exposed)
        seen = self._payoff.step(exposed, self._busy) if self._payoff is not None and self.active else None
        self._busy = 0.0
        if self._payoff is not None and seen is not None:
            line = self._payoff.verdict(self.transport.gather_bytes(seen))
            if line is not None and self.transport.rank == 0:
                logging.getLogger("thinwire").warning(line)

    def _say_if_unsynced(self) -> None:
        """Once: DDP decides in the forward pass, so that no_sync() around backward alone reduces every micro-step."""
        model = self._model()
        if model is not None and not model.require_backward_grad_sync and not self._unsynced:
            self._unsynced = True
            logging.getLogger("thinwire").warning(
                "gradients are reduced within no_sync(): the forward pass was outside of it; allowed: both within no_sync()"
            )

    def _say_if_little(self) -> None:
        self._told = True
        # Who names parameters knows what goes uncompressed.
        line = None if isinstance(self.codec, Raw | Patterns) else self.share.little(self.min_elements)
        if line is not None and self.transport.rank == 0:
            logging.getLogger("thinwire").warning(line)

    def _origin(self) -> state.Origin:
        """What a state has in common with this handle."""
        steps = 0 if self._residuals is None else self._residuals.steps
        return state.Origin(codec=self.codec.spec(), feedback=spec_of(self.feedback), steps=steps)

    def _compressed_names(self) -> set[str]:
        return set(self._assignment.codecs) & set(self._parameters)

    def _decide(self, controller: Controller) -> None:
        """End a step of the policy, and every so many steps take its next decision, rank 0's."""
        seen = controller.end_step()
        if seen is None:
            return
        everyone = self.transport.gather_bytes(seen)
        said = controller.decide(everyone) if self.transport.rank == 0 else ""
        controller.apply(self.transport.gather_text(said)[0])
        self._assignment = self._assignment.changed(controller.decision)
        if self.transport.rank == 0:
            logging.getLogger("thinwire").info(f"{self.codec.name} after {controller.steps} steps: {self.share.counts()}")

    def _agree_on_decision(self) -> None:
        """States of several checkpoints may have been loaded; ranks that disagree send nothing until another one is."""
        listing = [f"{name} {codec.spec()}" for name, codec in self._assignment.codecs.items()]
        try:
            agree(self.transport, "the next step", listing, steps=self._controller.steps if self._controller else 0)
        except DisagreementError as error:
            self._parted = error
            raise

    def _agree(self) -> None:
        listing = [f"{name} {p.dtype}{list(p.shape)}" for name, p in self._parameters.items()]
        if isinstance(self.codec, Patterns):
            listing += [f"{name} {codec.spec()}" for name, codec in self._assignment.codecs.items()]
        facts = {"codec": self.codec.spec(), "feedback": spec_of(self.feedback), "min_elements": self.min_elements}
        facts |= {"timeout": self.transport.timeout, "verify_every": self._verify_every}
        agree(self.transport, "compress", listing, **facts)
