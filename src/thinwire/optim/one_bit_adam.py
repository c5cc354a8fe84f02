"""1-bit Adam (Tang et al. 2021, arXiv:2102.02888) and 0/1 Adam's variance schedule (Lu et al. 2022, arXiv:2202.06009).

Adam divides by the root of the variance v, so whatever a codec loses of a gradient enters v and stays there, and feedback makes
it worse. Once v is held fixed, Adam is momentum SGD with a rate for each element: linear in what is sent, so that feedback works.
With the local gradient g of a rank, its mean over the ranks G, and the residual e of the rank:

    exact steps (all up to freeze_step, or those of a schedule)      G is averaged in fp32, then Adam:
        m <- b1 m + (1 - b1) G        v <- b2 v + (1 - b2) G^2       x <- x - lr m' / (sqrt(v') + eps)
    all others                                                       momenta are averaged through the codec:
        m <- mean of Q(b1 m + (1 - b1) g + e)                        x <- x - lr m' / (max(sqrt(v'), floor rms) + eps)
        e <- what the wire lost, on both shots

m' = m / (1 - b1^t) and v' = v / (1 - b2^k), with the steps t and the updates k of the variance: in the exact steps that is
torch.optim.AdamW bit for bit, and when v is held, v' is too. ``bias_correction=False`` leaves both out, as DeepSpeed did; the
paper has none. rms is that of sqrt(v') over the parameter: an element that had next to no gradient in the warm-up would otherwise
be divided by eps, and a block's quantization error with it. The floor is not in the paper; ``floor=0`` is the paper's.
Parameters with one dimension or few elements have their momentum averaged in fp32.

Not here: 0/1 Adam's local steps between averages, and 1-bit LAMB.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.codec import codec as resolve
from thinwire.codec.base import Codec
from thinwire.collective.simulated import SimulatedPeers
from thinwire.collective.transport import Group
from thinwire.errors import ConfigError
from thinwire.feedback.forms import Form
from thinwire.feedback.specs import spec_of
from thinwire.metrics import Recorder, Stats
from thinwire.optim.adam import gradient_into, move, state_of, take_gradient, take_momentum
from thinwire.optim.checks import check_covers, check_group, check_options, residual_form
from thinwire.optim.exchange import Exchange
from thinwire.optim.gate import Gate
from thinwire.optim.ranks import Connected, Ranks, names_of, ranks_of
from thinwire.optim.schedule import Schedule, schedule_of
from thinwire.reducer import Reducer
from thinwire.training import state as checkpoint
from thinwire.training.assignment import assign
from thinwire.training.checks import check_parameters, compile_kernels
from thinwire.training.ddp import MIN_ELEMENTS
from thinwire.training.hook import is_compressed
from thinwire.training.share import Share, share_of

_KEY: Final = "thinwire"


class OneBitAdam(torch.optim.Optimizer):
    """Adam whose variance is frozen after a warm-up, and whose momentum then travels compressed; see the module."""

    _step_supports_amp_scaling = True
    """A GradScaler leaves it to :meth:`step` to skip: a rank alone must not, since the others wait for it."""

    def __init__(
        self, params: Iterable[torch.Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3, *, freeze_step: int,
        model: nn.Module | None = None, group: Group | SimulatedPeers = None, codec: str | Codec = "sign1",
        feedback: bool | str | Form | None = True, variance_update: str | Schedule = "warm_up",
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
        bias_correction: bool = True, floor: float = 0.1, min_elements: int = MIN_ELEMENTS,
        streams: int | None = None, timeout: float | None = None,
    ) -> None:  # fmt: skip
        """``params``, ``lr``, ``betas``, ``eps`` and ``weight_decay`` as in torch.optim.AdamW, with groups; on every rank.

        ``freeze_step``: the last step that may update the variance; 15 to 25 % of all steps, and after the learning rate's own
        warm-up. ``variance_update``: in which steps before it that is done: "warm_up" (1-bit Adam), "zero_one" or
        ``ZeroOne(scaler=16)`` (0/1 Adam). ``model``: the DistributedDataParallel module of the parameters, whose communication
        the optimizer takes over; without it, every rank has a module of its own and the optimizer averages all gradients over
        ``group``. ``codec``, ``feedback``, ``min_elements``, ``streams`` and ``timeout`` as in :func:`thinwire.compress`.
        ``decoupled=False`` adds ``weight_decay`` times the weights to the gradient instead of shrinking the weights.

        Raises ConfigError for bad arguments, and for a ``model`` that is compressed already or has parameters of which the
        optimizer does not know; DisagreementError on every rank if the ranks' arguments or parameters differ.
        """
        made = resolve(codec)
        self._schedule, self._form = schedule_of(variance_update), residual_form(feedback, made)
        check_options(freeze_step=freeze_step, floor=floor, min_elements=min_elements)
        self._freeze_step, self._floor, self._min_elements, self._codec = freeze_step, floor, min_elements, made
        self._ranks: Ranks | None = None
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decoupled": decoupled,
            "bias_correction": bias_correction,
        }  # fmt: skip
        super().__init__(params, defaults)
        self._every = [p for one in self.param_groups for p in one["params"] if p.requires_grad]
        ddp = _unwrapped(model)
        named = {} if ddp is None else dict(ddp.module.named_parameters())
        self._numbers = {id(p): number for number, p in enumerate(self._every)}
        self._parameters = dict(zip(names_of(self._every, named), self._every, strict=True))
        check_parameters(self._parameters)
        self._assignment = assign(made, self._parameters, min_elements)
        if ddp is not None:
            check_covers(named, self._every, group, is_compressed(ddp))
        recorder = Recorder()
        compile_kernels(made)
        self._ranks = ranks = ranks_of(ddp.process_group if ddp is not None else group, streams, timeout)
        self._agree(ranks)
        self._reducer = Reducer(ranks.peers, made, recorder)
        self._exchange = Exchange(
            self._reducer, self._every, [name in self._assignment.codecs for name in self._parameters], self._form
        )
        self._gate = Gate(ddp, ranks, self._reducer) if ddp is not None and isinstance(ranks, Connected) else None
        self.steps = 0
        """Steps that were taken; those with a NaN or Inf on any rank are not."""
        self.finite = True
        """Whether the last step was taken, the same on all ranks."""
        self._follows = False
        self._prepare()

    @property
    def exact(self) -> bool:
        """Whether the next step averages gradients in fp32 and updates the variance."""
        step = self.steps + 1
        return step <= self._freeze_step and self._schedule.updates(step)

    @property
    def share(self) -> Share:
        """Elements whose momentum travels compressed and uncompressed, and the names of the latter."""
        return share_of(self._parameters, self._assignment)

    def summary(self) -> str:
        """One line for people: codec, bits, threshold, and what goes uncompressed."""
        return self.share.summary(self._codec, spec_of(self._form), self._min_elements)

    def stats(self) -> Stats:
        """What this rank sent and received, and the seconds by phase, since the last call."""
        return self._reducer.recorder.take()

    def follow(self, scaler: Any) -> None:
        """Have all ranks of a DDP model see an overflow of one, so that ``scaler``, a torch.amp.GradScaler, is equal on all."""
        if not callable(getattr(scaler, "get_scale", None)):
            raise ConfigError(f"scaler is a {type(scaler).__name__}; allowed: a torch.amp.GradScaler")
        self._follows = True
        if self._gate is not None:
            self._gate.spreads = True

    def remove(self) -> None:
        """Give communication back: DDP averages gradients in fp32 from the next backward on, for another optimizer."""
        if self._gate is not None:
            self._gate.active = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch, at construction only: what ranks send to each other is laid out then."""
        if self._ranks is not None:
            raise ConfigError(
                "add_param_group after construction; allowed: all groups at once, or a new OneBitAdam (remove() first)"
            )
        super().add_param_group(param_group)
        check_group(self.param_groups[-1])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on all ranks; each must call it as often. A parameter without gradient on all ranks is left alone; one
        without on some has zero there.

        Raises ConfigError for gradients that cannot be averaged, PeerLost or CollectiveTimeout if a rank is lost.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        assert self._ranks is not None
        exact = self.exact
        self._check_step(exact)
        self._fill(exact)
        self.finite = self._ranks.run(self._average_exactly if exact else self._exchange.average)
        self._reducer.recorder.add(steps=1)
        if self.finite:
            self._update(exact)
            self.steps += 1
        self._prepare()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: torch's, and residuals, which differ by rank. Save one a rank."""
        exchange, peers = self._exchange, self._exchange.reducer.transport
        residuals = exchange.residuals
        kept = {} if residuals is None else {n: checkpoint.shaped(residuals.of(n), self._every[int(n)]) for n in residuals.sizes}
        made = checkpoint.pack(self._origin(), peers.rank, peers.size, kept, [], 1.0)
        made |= {"step": self.steps, "messages": {f"rank{peers.rank}": exchange.reducer.noise.messages}}
        return {**super().state_dict(), _KEY: made}

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take over :meth:`state_dict` of the same parameters: the trajectory goes on bit for bit.

        On another number of ranks, a list has the states of all ranks that saved: every rank then takes the mean of their
        residuals. Raises ConfigError for a state of another optimizer, codec or form of feedback, or of other parameters.
        """
        states = [state_dict] if isinstance(state_dict, Mapping) else list(state_dict)
        if not states or any(_KEY not in one for one in states):
            raise ConfigError("state is not one of OneBitAdam; allowed: its state_dict(), or a list of those of all ranks")
        ours, peers, residuals = [one[_KEY] for one in states], self._exchange.reducer.transport, self._exchange.residuals
        found, _, _ = checkpoint.unpack(ours, self._origin(), peers.rank, peers.size)
        if residuals is not None:
            zeros = {name: torch.zeros(size) for name, size in residuals.sizes.items()}
            flats = {n: checkpoint.flattened(n, v, self._every[int(n)]) if n in zeros else v for n, v in (found or {}).items()}
            residuals.load_state_dict(zeros | flats if found is None else flats)
            residuals.steps = checkpoint.feedback_steps(ours)
        super().load_state_dict({key: value for key, value in states[0].items() if key != _KEY})
        self._restore_precision(states[0])
        self.steps, self._reducer.noise.messages = int(ours[0]["step"]), checkpoint.messages(ours, peers.rank)
        self._prepare()

    def _restore_precision(self, saved: Mapping[str, Any]) -> None:
        """torch casts what belongs to a parameter to its dtype; momentum and variance are fp32 whatever that is."""
        numbers = itertools.chain.from_iterable(one["params"] for one in saved["param_groups"])
        parameters = itertools.chain.from_iterable(one["params"] for one in self.param_groups)
        for number, p in zip(numbers, parameters, strict=True):
            for name in ("exp_avg", "exp_avg_sq") if number in saved["state"] else ():
                self.state[p][name] = torch.empty_like(p, dtype=torch.float32).copy_(saved["state"][number][name])

    def _check_step(self, exact: bool) -> None:
        if self._gate is None:
            return
        if exact and not self._gate.averaged and any(p.grad is not None for p in self._every):
            raise ConfigError(
                "step() without a backward whose gradients were averaged; allowed: one outside of no_sync() before each step"
            )
        if hasattr(self, "found_inf") and not self._follows and self._reducer.transport.size > 1:
            raise ConfigError("a GradScaler is used with a DDP model; allowed: optimizer.follow(scaler) before the first step")

    def _each(self) -> Iterator[tuple[int, torch.Tensor, dict[str, Any], dict[str, Any]]]:
        """Every parameter's number, itself, its group and its state."""
        for group in self.param_groups:
            for p in group["params"]:
                if id(p) in self._numbers:
                    yield self._numbers[id(p)], p, group, state_of(self.state[p], p)

    def _fill(self, exact: bool) -> None:
        """This rank's gradients, or momenta, and the tail."""
        exchange, scale = self._exchange, getattr(self, "grad_scale", None)
        for number, p, group, state in self._each():
            view, beta = exchange.views[number], group["betas"][0]
            gradient_into(view, p, scale, 0.0 if group["decoupled"] else group["weight_decay"])
            if not exact:
                view.mul_(1 - beta).add_(state["exp_avg"].to(view.device), alpha=beta)
            exchange.used[number] = float(p.grad is not None)
            # Ranks with other processors or threads may add in another order: all take the mean of what they find.
            exchange.shared[number] = 0.0 if exact or not self._floor else state["exp_avg_sq"].mean()

    def _average_exactly(self) -> bool:
        if self._gate is None:
            return self._exchange.average_exactly()
        return bool(self._exchange.flat.sum().isfinite())  # DDP has averaged them

    def _update(self, exact: bool) -> None:
        for number, p, group, state in self._each():
            if self._exchange.used[number] == 0:
                continue
            mean = self._exchange.views[number].to(p.device)
            if exact:
                take_gradient(state, mean, group["betas"])
            else:
                take_momentum(state, mean)
            move(p, state, group, 0.0 if exact else self._floor**2 * float(self._exchange.shared[number]))

    def _prepare(self) -> None:
        """Tell DDP's hook what the next backward is for."""
        if self._gate is not None:
            self._gate.exact, self._gate.averaged = self.exact, False

    def _origin(self) -> checkpoint.Origin:
        steps = 0 if self._exchange.residuals is None else self._exchange.residuals.steps
        return checkpoint.Origin(codec=self._codec.spec(), feedback=spec_of(self._form), steps=steps)

    def _agree(self, ranks: Ranks) -> None:
        options = [
            {key: value for key, value in one.items() if key not in ("params", "param_names")} for one in self.param_groups
        ]
        facts: dict[str, object] = {"codec": self._codec.spec(), "feedback": spec_of(self._form), "floor": self._floor}
        facts |= {"min_elements": self._min_elements, "freeze_step": self._freeze_step, "variance_update": self._schedule}
        facts |= {f"group {number}": one for number, one in enumerate(options)}
        ranks.agree(self._parameters, facts)


def _unwrapped(model: nn.Module | None) -> DistributedDataParallel | None:
    """The DDP module behind the argument ``model``, out of torch.compile's. Raises ConfigError for any other module."""
    model = getattr(model, "_orig_mod", model)
    if model is not None and not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"model is a {type(model).__name__}; allowed: torch.nn.parallel.DistributedDataParallel, or None if every rank has a "
            "module of its own"
        )
    return model
