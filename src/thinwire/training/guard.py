"""DDP's own messages (buffers, the order of its buckets) go over the training script's group before a forward pass.

A rank that is lost meanwhile would be an error of gloo's that names nobody, after that group's half an hour. Here it is ours.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire.collective.transport import Transport


def guard(model: DistributedDataParallel, transport: Transport) -> None:
    """Have ``model`` raise PeerLost or CollectiveTimeout for a rank that is lost before a forward pass, within the timeout."""
    inner = getattr(model, "_pre_forward", None)
    if inner is None or transport.size == 1 or transport.style != "sockets":
        return
    group: Any = model.process_group
    backend = group._get_backend(torch.device("cpu"))
    settable = hasattr(backend, "set_timeout")

    def pre_forward(*inputs: Any, **kwargs: Any) -> Any:
        before = backend.options._timeout if settable else None
        if before is not None and before.total_seconds() > transport.timeout:
            backend.set_timeout(timedelta(seconds=transport.timeout))
        try:
            return inner(*inputs, **kwargs)
        except RuntimeError as error:
            if not isinstance(error, torch.distributed.DistError) and "gloo" not in str(error):
                raise
            transport.watch.begin("DDP's own messages before a forward pass")
            raise transport.watch.broken("bytes that DDP does not count", error) from error
        finally:
            if before is not None:
                backend.set_timeout(before)

    vars(model)["_pre_forward"] = pre_forward
