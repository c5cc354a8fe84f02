"""Data-parallel training in plain PyTorch, with one line for thinwire.

Two terminals:

    python mnist_ddp.py --rank 0 --world_size 2 --master_addr 127.0.0.1 --master_port 12345 --bits 8
    python mnist_ddp.py --rank 1 --world_size 2 --master_addr 127.0.0.1 --master_port 12345 --bits 8

or torchrun, which sets rank, world size and address itself:

    torchrun --nproc_per_node 2 mnist_ddp.py --bits 4
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import thinwire
from thinwire.workloads.idx import images_and_labels
from thinwire.workloads.mnist import BUNDLED

CODECS = {32: "none", 16: "bf16", **{bits: f"int{bits}" for bits in range(2, 9)}}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=int(os.environ.get("RANK", 0)))
    parser.add_argument("--world_size", type=int, default=int(os.environ.get("WORLD_SIZE", 1)))
    parser.add_argument("--master_addr", default=os.environ.get("MASTER_ADDR", "127.0.0.1"))
    parser.add_argument("--master_port", type=int, default=int(os.environ.get("MASTER_PORT", 12345)))
    parser.add_argument("--bits", type=int, choices=sorted(CODECS), default=8, help="bits per gradient element")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--data", type=Path, default=BUNDLED, help="folder of MNIST's four idx files")
    return parser.parse_args()


def dataset(folder: Path, prefix: str) -> TensorDataset:
    images, labels = images_and_labels(folder, prefix)
    pixels = (torch.tensor(images, dtype=torch.float32) / 255 - 0.1307) / 0.3081
    return TensorDataset(pixels[:, None], torch.tensor(labels, dtype=torch.int64))


def main() -> None:
    args = arguments()
    dist.init_process_group(
        args.backend,
        init_method=f"tcp://{args.master_addr}:{args.master_port}",
        rank=args.rank,
        world_size=args.world_size,
    )
    if args.backend == "nccl":
        torch.cuda.set_device(args.rank % torch.cuda.device_count())
    device = torch.device("cuda" if args.backend == "nccl" else "cpu")
    torch.manual_seed(0)

    network = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(21632, 10)).to(device)
    model = DistributedDataParallel(network)
    handle = thinwire.compress(model, CODECS[args.bits])  # <- the one line
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    train, test = dataset(args.data, "train"), dataset(args.data, "t10k")
    sampler = DistributedSampler(train, args.world_size, args.rank)
    loader = DataLoader(train, batch_size=128, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        stats = handle.stats()
        if args.rank == 0:
            seconds = time.perf_counter() - start
            print(
                f"epoch {epoch + 1}: loss {loss.item():.4f}, {seconds:.1f} s, {stats.bytes_sent / stats.steps:,.0f} bytes a step"
            )

    with torch.no_grad():
        images, labels = test.tensors
        accuracy = (network(images.to(device)).argmax(1).cpu() == labels).float().mean().item()
    if args.rank == 0:
        print(handle.summary())
        print(f"accuracy {100 * accuracy:.2f} % with {args.bits} bits")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
