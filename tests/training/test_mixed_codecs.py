"""Several codecs in one model, on real ranks: by pattern, by leg, and by budget."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks as real
import thinwire as tw
from heard import heard
from thinwire.bench.oracle import all_reduced, tensor_of
from thinwire.collective.legs import resolve
from thinwire.overlap import worker_of
from thinwire.reducer import Reducer
from thinwire.training.simulate import Simulation
from thinwire.workloads.gpt import GptConfig, GptWorkload
from thinwire.workloads.loop import replicas_identical
from thinwire.workloads.mnist import Mnist, MnistConfig

MIXED = {"*.bias": "none", "1.weight": "int8", "3.*": ("int2", "int4"), "5.*": "none", "*": "int4"}
WITH_BIAS = {"0.*": "int4", "1.*": "none", "3.bias": "int8;block=8", "3.*": "int3", "5.*": "int4"}


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(33, 70), nn.LayerNorm(70), nn.ReLU(), nn.Linear(70, 51), nn.ReLU(), nn.Linear(51, 10))


def backward(model: nn.Module, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs, targets = torch.randn(16, 33, generator=generator), torch.randint(10, (16,), generator=generator)
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()


def local_gradients(model: nn.Module, ranks: int, step: int) -> list[dict[str, np.ndarray]]:
    found = []
    for rank in range(ranks):
        twin = copy.deepcopy(model.module)
        backward(twin, rank, step)
        found.append({name: p.grad.numpy().ravel().copy() for name, p in twin.named_parameters()})
    return found


def _oracle(rank: int, ranks: int, choice, bucket_mb: float) -> list[str]:
    """Every codec's tensors of each bucket, computed by one process from all ranks' gradients; the rest is the exact mean."""
    wrong = []
    model = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb)
    handle = tw.compress(model, choice)
    layouts = []
    inner = handle._reduction.mean
    handle._reduction.mean = lambda payload, layout: (layouts.append(layout), inner(payload, layout))
    compressed = {row["parameter"] for row in handle.assignment() if row["codec"] != "none"}
    for step in range(3):
        local = local_gradients(model, ranks, step)
        layouts.clear()
        backward(model, rank, step)
        got = {n: p.grad.numpy().ravel() for n, p in model.module.named_parameters()}
        seen = set()
        for layout in layouts:
            result = np.concatenate([got[n] for n in layout.names])
            sent = [np.concatenate([g[n] if n in compressed else np.zeros_like(g[n]) for n in layout.names]) for g in local]
            for part in layout.parts:
                tensors = [np.concatenate([x[span] for span in part.spans]) for x in sent]
                mean = all_reduced(tensors, part.codec, "mean")
                mine = np.concatenate([result[span] for span in part.spans])
                inside = np.concatenate([np.concatenate([np.full(got[n].size, n in compressed) for n in layout.names])[span]
                                         for span in part.spans])  # fmt: skip
                if inside.sum() != part.elements or not np.array_equal(mine[inside], mean[inside]):
                    wrong.append(f"step {step}: {part.codec.spec()}")
            seen |= {n for n in layout.names if n in compressed}
        wrong += [] if seen == compressed else [f"step {step}: compressed were {seen}"]
        for n, mean in got.items():
            if n not in compressed and not np.allclose(mean, sum(g[n] for g in local) / ranks, atol=1e-6):
                wrong.append(f"step {step}: {n}")
    wrong += [] if replicas_identical(model) else ["replicas differ"]
    return wrong


@pytest.mark.parametrize(
    ("ranks", "choice", "bucket_mb"),
    [(2, MIXED, 100), (2, WITH_BIAS, 100), (3, WITH_BIAS, 0.01), (4, MIXED, 0.01), (2, "int2/int4", 100), (2, "none/int4", 0.01)],
)
def test_each_codec_gives_what_the_oracle_says(ranks, choice, bucket_mb):
    assert real.run(_oracle, ranks, ranks, choice, bucket_mb) == [[]] * ranks


def _weights(rank: int, choice, steps: int = 6, feedback: bool = False):
    """Weights after some steps of SGD, what the handle says, and its statistics."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    handle = tw.compress(model, choice, feedback=feedback)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        backward(model, rank, step)
        optimizer.step()
    flat = torch.cat([p.detach().view(-1) for p in model.parameters()])
    return flat.numpy(), handle.summary(), handle.stats(), handle.share.compressed, replicas_identical(model)


def test_patterns_of_one_codec_have_the_bits_of_that_codec():
    for feedback in (False, True):
        plain = real.run(_weights, 2, "int4", 6, feedback)
        for choice in ({"*": "int4"}, {"*.weight": "int4", "*": "none"}, ("int4", "int4")):
            other = real.run(_weights, 2, choice, 6, feedback)
            assert np.array_equal(plain[0][0], other[0][0])
            assert plain[0][2].bytes_sent == other[0][2].bytes_sent


def test_what_is_said_of_several_codecs():
    (_, summary, stats, compressed, identical), _ = real.run(_weights, 2, MIXED, 4, True)
    assert identical
    assert "int2/int4: 3,570" in summary
    assert "int4: 2,310" in summary
    assert "int8: 70" in summary
    assert "5.weight" in summary
    assert stats.codec.startswith("*.bias=none|1.weight=int8;block=128")
    assert compressed == 33 * 70 + 70 + 70 * 51
    assert stats.elements_compressed == 4 * compressed
    assert 0.05 < stats.error < 0.5


def _feedback(rank: int) -> list[float]:
    """How far the mean of 40 reduced gradients is from the truth, without and with feedback."""
    found = []
    for feedback in (False, True):
        model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
        tw.compress(model, {"0.*": "int2", "3.*": ("int2", "int3"), "*": "int2;block=64"}, feedback=feedback)
        local = local_gradients(model, 2, 0)
        expected = torch.from_numpy(np.concatenate([(local[0][n] + local[1][n]) / 2 for n in local[0]]))
        total = torch.zeros_like(expected)
        for _ in range(40):
            backward(model, rank, 0)
            total += torch.cat([p.grad.reshape(-1) for p in model.parameters()]) / 40
        found.append(float((total - expected).norm() / expected.norm()))
    return found


def test_feedback_makes_up_for_what_each_codec_lost():
    for without, with_feedback in real.run(_feedback, 2):
        assert with_feedback < without / 8


def _disagree(rank: int, choices) -> str:
    model = DistributedDataParallel(network())
    try:
        tw.compress(model, choices[rank])
    except tw.DisagreementError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    "choices",
    [
        ({"0.*": "int8", "*": "int4"}, {"0.*": "int8", "*": "int3"}),
        ({"*": "int4"}, "int4"),
        ("int2/int4", "int4/int2"),
        ("auto:4", "auto:3.5"),
        ("auto:4", "auto:4;every=7"),
    ],
)
def test_ranks_with_other_choices_say_so(choices):
    for message in real.run(_disagree, 2, choices):
        assert "disagree on codec" in message
        assert "rank 0" in message
        assert "rank 1" in message


def _all_reduce(rank: int, ranks: int) -> list[str]:
    wrong = []
    for pair in (("int2", "int4"), "int8/int3", ("bf16", "int4"), ("none", "int8")):
        for n in (1, 5001, 300_000):
            tensors = [tensor_of(other, n) for other in range(ranks)]
            mine = torch.from_numpy(tensors[rank].copy())
            tw.all_reduce(mine, pair)
            segment = Reducer(worker_of()[0], resolve(pair)).shards(n).segment
            if not np.array_equal(mine.numpy(), all_reduced(tensors, resolve(pair), "mean", segment)):
                wrong.append(f"{pair} {n}")
    return wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_reduce_with_a_codec_for_each_leg(ranks):
    assert real.run(_all_reduce, ranks, ranks) == [[]] * ranks


def _one_leg(rank: int) -> list[str]:
    """reduce_scatter takes the first leg, all_gather the second."""
    wrong, x = [], torch.from_numpy(tensor_of(rank, 2000))
    for call, size in ((tw.reduce_scatter, 1000), (tw.all_gather, 4000)):
        one, other = torch.empty(size), torch.empty(size)
        call(one, x, "int2/int4")
        call(other, x, "int2" if call is tw.reduce_scatter else "int4")
        wrong += [] if torch.equal(one, other) else [call.__name__]
    return wrong


def test_half_an_all_reduce_takes_its_own_leg():
    assert real.run(_one_leg, 2) == [[], []]


def _auto(rank: int, ranks: int, every: int, steps: int):
    """The assignment in each step, what rank 0 logs, and whether replicas agree."""
    with heard() as lines:
        model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
        handle = tw.compress(model, f"auto:4;every={every}", feedback=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for step in range(steps):
            seen.append(handle.assignment())
            backward(model, rank, step)
            optimizer.step()
        bits = handle.share.bits_per_element
        return seen, lines, replicas_identical(model), bits


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_same_decision_on_all_ranks_and_at_its_step_only(ranks):
    found = real.run(_auto, ranks, ranks, 3, 8)
    steps = found[0][0]
    assert all(one[0] == steps and one[2] and one[3] <= 4 for one in found)
    assert steps[0] == steps[1] == steps[2]
    assert {row["codec"] for row in steps[0]} == {tw.codec("int3").spec(), "none"}
    assert steps[3] != steps[2]
    assert steps[3] == steps[4] == steps[5]
    assert steps[6] == steps[7]
    lines = [line for line in found[0][1] if " after " in line]
    assert lines[0].startswith("auto:4 after 3 steps: 3.")
    assert len(lines) == 2
    assert not [line for line in found[1][1] if " after " in line]


def _other_state(rank: int) -> list[str]:
    """States of another assignment or of other layers are refused, and ranks with other decisions do not send."""
    wrong = []

    def handle_of(choice):
        model = DistributedDataParallel(network())
        return model, tw.compress(model, choice)

    _, mixed = handle_of(MIXED)
    model, auto = handle_of("auto:4;every=1")
    state = auto.state_dict()
    policy = json.loads(state["policy"])
    names = list(policy["decision"])
    outside = [{**policy, "decision": dict.fromkeys(names, number)} for number in (-1, 99)]
    other = [{**policy, "decision": {"9.weight": 0}}, {**policy, "decision": {**policy["decision"], "9.weight": 0}}, {}, 3]
    bad_ones = [{**state, "policy": json.dumps(one)} for one in (*outside, *other)]
    for bad in (mixed.state_dict(), {**state, "policy": ""}, {**state, "version": 2}, *bad_ones):
        try:
            auto.load_state_dict(bad)
            wrong.append(f"taken: {bad['codec']} {bad['policy']}")
        except tw.ConfigError:
            pass
    backward(model, rank, 0)
    if rank == 1:
        auto.load_state_dict(state)
    else:
        auto.load_state_dict(auto.state_dict())
    try:
        backward(model, rank, 1)
        wrong.append("ranks with other decisions were not found out")
    except tw.DisagreementError as error:
        wrong += [] if "steps" in str(error) else [str(error)]
    return wrong


def test_states_that_do_not_fit():
    assert real.run(_other_state, 2) == [[], []]


def _gradients_of(workload, choice, steps: int, feedback: bool = False):
    """A simulation of four ranks after so many steps, with the mean NMSE of the second half and the bytes a rank sent in it."""
    torch.manual_seed(1)
    model = workload.model()
    optimizer, errors = workload.optimizer(model), []
    ranks = Simulation(model, choice, 4, feedback)
    batches = [workload.batches(0, 3, rank, 4) for rank in range(4)]
    for step, batch in zip(range(steps), zip(*batches, strict=True), strict=False):
        if step == steps // 2:
            ranks.stats()
        ranks.backward(lambda rank, batch=batch: workload.loss(model(batch[rank].inputs), batch[rank].targets))
        optimizer.step()
        errors.append(ranks.nmse)
    sent = max(one.bytes_sent for one in ranks.stats()) / (steps - steps // 2)
    return ranks, float(np.mean(errors[steps // 2 :])), sent


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    file = tmp_path_factory.mktemp("gpt") / "text"
    file.write_bytes(b"".join(np.random.default_rng(0).choice([b"all ", b"work ", b"and ", b"no ", b"play\n"], 20_000)))
    return GptWorkload(file, GptConfig(layers=2, heads=2, width=128, context=32, batch=2))


@pytest.mark.parametrize("bits", [2.5, 3.5, 4, 6])
@pytest.mark.parametrize("name", ["mnist", "gpt"])
def test_the_budget_holds_on_real_gradients(gpt, name, bits):
    workload = Mnist(None, MnistConfig(batch=8)) if name == "mnist" else gpt
    ranks, _, sent = _gradients_of(workload, f"auto:{bits};every=4", 8)
    assert ranks.identical
    assert ranks.share.bits_per_element <= bits
    # Two legs of 3/4 of the elements each; what goes uncompressed on top, and a few bytes of padding a message.
    assert 8 * sent <= 1.5 * (1.02 * bits * ranks.share.compressed + 32 * ranks.share.uncompressed)


@pytest.mark.parametrize("codec", ["int3", "int4", "int6"])
def test_less_error_than_one_codec_of_the_same_bytes(gpt, codec):
    """Embeddings are a few percent of the elements and, early in training, most of the gradient."""
    _, uniform, sent = _gradients_of(gpt, codec, 12)
    bits = tw.codec(codec).bits_per_element(1 << 20) + 0.001
    _, chosen, other = _gradients_of(gpt, f"auto:{bits:.4f};every=6", 12)
    assert other <= 1.005 * sent
    assert chosen < uniform / 2


def test_what_was_measured_chooses_no_worse_than_one_codec_for_all(gpt):
    """The measured errors of the decision are at most those of each candidate that fits, by the controller's own table."""
    ranks, _, _ = _gradients_of(gpt, "auto:4.3;every=100", 3)
    controllers = [one.controller for one in ranks._reductions]
    made, layers = controllers[0].auto, controllers[0].layers
    tables = []
    inner = made.update
    object.__setattr__(made, "update", lambda layers, errors: (tables.append(errors), inner(layers, errors))[1])
    for one in controllers:
        for name, n in layers.items():
            x = torch.from_numpy(tensor_of(len(tables), n) * (hash_of(name) % 7 + 1)).float()
            one.sent({name: x, "no layer": x})
            one.came({name: x})
    controllers[0].apply(controllers[0].decide([one._seen.tobytes() for one in controllers]))
    (errors,) = tables
    chosen = sum(errors[name][made.candidates.index(codec)] for name, codec in controllers[0].decision.items())
    for number, size in enumerate(made.sizes(layers).sum(0)):
        if size <= made.budget(layers):
            assert chosen <= sum(row[number] for row in errors.values()) * (1 + 1e-12)


def hash_of(name: str) -> int:
    return sum(name.encode())


def test_a_nan_keeps_the_last_decision():
    torch.manual_seed(0)
    model = network()
    ranks = Simulation(model, "auto:4;every=2", 2)

    def loss(scale: float):
        return lambda rank: scale * model(torch.randn(8, 33, generator=torch.Generator().manual_seed(rank))).square().mean()

    for scale in (1, 1, 1):
        ranks.backward(loss(scale))
    before = ranks.assignment()
    ranks.backward(lambda rank: loss(float("nan") if rank == 1 else 1)(rank))
    assert ranks.assignment() == before
    ranks.backward(loss(1))
    assert ranks.identical


@pytest.mark.parametrize("codec", ["minmax4", "hadamard(int2)"])
def test_zeros_in_place_of_uncompressed_parameters_leave_no_residual(codec):
    """These codecs make something else of a zero, which nobody gets: the parameter that goes uncompressed owes nothing."""
    model = network()
    ranks = Simulation(model, codec, 3, feedback=True)
    for step in range(2):
        inputs = [torch.randn(8, 33, generator=torch.Generator().manual_seed(10 * step + rank)) for rank in range(3)]
        ranks.backward(lambda rank, inputs=inputs: model(inputs[rank]).square().mean())
    for one in ranks._reductions:
        kept = one.residuals.state_dict()
        assert not any(kept[name].any() for name in ("0.bias", "1.weight", "1.bias", "3.bias", "5.bias"))
        assert kept["3.weight"].any()
