"""DDP's hook under an optimizer that owns communication: gradients pass as they are, or are averaged exactly."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire.optim.ranks import Connected
from thinwire.reducer import Reducer
from thinwire.training.bucket import as_payload
from thinwire.training.hook import raise_after_backward, register


class Gate:
    """Which of both, from the next backward on, is ``exact``; ``averaged`` says whether the last backward did the latter."""

    def __init__(self, model: DistributedDataParallel, ranks: Connected, reducer: Reducer) -> None:
        """Raises ConfigError if the model has a hook of another's."""
        self._ranks, self._reducer = ranks, reducer
        self.active = self.exact = True
        self.averaged = False
        self.spreads = False
        """Whether a rank's NaN or Inf is to be seen by all of them, as a GradScaler's ranks must."""
        self._finite = True
        self._tasks: list[Future[None]] = []
        register(model, self, ranks.transport)

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """DDP's communication hook: returns at once."""
        buffer, last = bucket.buffer(), bucket.is_last()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        self.averaged = self.exact or not self.active
        if not self.averaged and self.spreads:
            self._finite = self._finite and bool(buffer.sum().isfinite())
        if self.averaged or (last and self.spreads):
            if buffer.is_cuda:
                # The worker reads the gradients from another thread; what fills them is queued on this one's stream.
                torch.cuda.current_stream(buffer.device).synchronize()
            task = self._average if self.averaged else self._spread
            self._tasks.append(self._ranks.worker.submit(lambda: self._run(task, buffer, future)))
        else:
            future.set_result(buffer)
        if last:
            tasks, self._tasks = self._tasks, []
            raise_after_backward(tasks)
        return future

    def _run(self, task: Any, buffer: torch.Tensor, future: torch.futures.Future[torch.Tensor]) -> None:
        self._ranks.transport.watch.begin("a gradient bucket")
        try:
            with torch.no_grad():
                task(buffer)
        except BaseException as error:  # DDP's wait must end, whatever happened
            future.set_exception(error)  # pyright: ignore[reportArgumentType]  torch says Exception
            raise
        future.set_result(buffer)

    def _average(self, buffer: torch.Tensor) -> None:
        payload = as_payload(buffer)
        self._reducer.all_reduce_uncompressed(payload)
        if payload.data_ptr() != buffer.data_ptr():
            buffer.copy_(payload)

    def _spread(self, buffer: torch.Tensor) -> None:
        good, self._finite = torch.tensor([float(self._finite)]), True
        self._reducer.all_reduce_uncompressed(good)
        if good < 1:
            buffer.fill_(torch.nan)
