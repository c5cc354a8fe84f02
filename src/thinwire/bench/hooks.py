"""PyTorch's own communication hooks, as people would use them today, so that ours stand beside them.

Each is registered as its documentation says, with what it needs to run on gloo at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]  documented there
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from thinwire.collective.transport import of

ONE_BUCKET_MB: Final = 4096
"""PowerSGD's hook waits inside a future's callback: with a second bucket it hangs on gloo (pytorch#48478)."""
Register = Callable[[DistributedDataParallel], None]


def plain(model: DistributedDataParallel) -> None:
    """DDP's own fp32 all-reduce."""


def fp16(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def bf16(model: DistributedDataParallel) -> None:
    # DDP refuses bf16_compress_hook by its name where there is no NCCL, though gloo reduces bf16.
    def cast_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return default_hooks.bf16_compress_hook(state, bucket)

    cast_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    model.register_comm_hook(None, cast_hook)


def power_sgd(model: DistributedDataParallel) -> None:
    """Rank 1, from step 10 on, error feedback and warm start: its documented defaults, with an earlier start for short runs."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=10)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def quantized(model: DistributedDataParallel) -> None:
    """``quantization_pertensor_hook``: 8 bits a bucket, whole buffers gathered from all ranks.

    As it is, it raises IndexError on gloo, whose futures hold other nestings of lists (pytorch#138816); here its own steps run
    with thinwire's gather.
    """
    transport = of()

    def gather_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        low, high = (float(one) for one in torch.aminmax(buffer))
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max((high - low) / 255, torch.finfo(torch.float32).eps)
        zero = max(0, min(255, -round(low / scale)))
        codes = (buffer / scale + zero).round_().clamp_(0, 255).to(torch.uint8)
        scales = transport.gather_bytes(torch.tensor([scale, zero], dtype=torch.float64).numpy().tobytes())
        total = torch.zeros_like(buffer)
        for part, said in zip(transport.gather_bytes(codes.numpy().tobytes()), scales, strict=True):
            its_scale, its_zero = torch.frombuffer(bytearray(said), dtype=torch.float64).tolist()
            total += (torch.frombuffer(bytearray(part), dtype=torch.uint8).float() - its_zero) * its_scale
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(total.div_(transport.size))
        return future

    gather_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    model.register_comm_hook(None, gather_hook)


HOOKS: Final[dict[str, Register]] = {
    "DDP fp32": plain,
    "DDP fp16 hook": fp16,
    "DDP bf16 hook": bf16,
    "DDP PowerSGD": power_sgd,
    "DDP 8-bit hook": quantized,
}
