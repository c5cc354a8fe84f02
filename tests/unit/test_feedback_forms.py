"""Forms of feedback: their names, and the laws of what they return, without any rank."""

from __future__ import annotations

import pytest
import torch

import thinwire as tw
from thinwire.feedback import Decayed, MovingAverage, Plain, Residuals
from thinwire.feedback.specs import form_of, spec_of

FORMS = [
    (Plain(), "plain"),
    (Plain(second_shot=False), "plain;second_shot=false"),
    (Decayed(), "decay:0.95"),
    (Decayed(beta=0.5, second_shot=False), "decay:0.5;second_shot=false"),
    (MovingAverage(), "average:0.9"),
    (MovingAverage(beta=0.75, bits=32, reset=1024), "average:0.75;bits=32;reset=1024"),
]
INT2 = tw.codec("int2")


@pytest.mark.parametrize(("form", "spec"), FORMS)
def test_specs_name_forms_and_forms_specs(form, spec):
    assert form.spec() == spec
    assert form_of(spec, INT2) == form
    assert form_of(form, INT2) is form


def test_short_names():
    assert form_of(True, INT2) == Plain()
    assert form_of("decay", INT2) == Decayed()
    assert form_of("average", INT2) == tw.feedback.MovingAverage(beta=0.9, bits=8)
    for nothing in (None, False, "off"):
        assert form_of(nothing, INT2) is None
    assert spec_of(None) == "off"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: form_of("maybe", INT2), ["'maybe'", "plain", "decay:0.95"]),
        (lambda: form_of(3, INT2), ["feedback=3", "MovingAverage"]),
        (lambda: form_of("plain:0.5", INT2), ["'plain:0.5'", "beta"]),
        (lambda: form_of("decay:0.5;beta=0.6", INT2), ["once"]),
        (lambda: form_of("average:0.9;bit=8", INT2), ["'bit'", "bits"]),
        (lambda: form_of("decay:x", INT2), ["beta='x'", "below 1"]),
        (lambda: form_of("decay:nan", INT2), ["beta='nan'"]),
        (lambda: Decayed(beta=1.0), ["beta=1.0"]),
        (lambda: Decayed(beta=True), ["beta=True"]),
        (lambda: MovingAverage(beta=0.0), ["beta=0.0"]),
        (lambda: MovingAverage(bits=16), ["bits=16", "8, 32"]),
        (lambda: MovingAverage(reset=0), ["reset=0"]),
        (lambda: Plain(second_shot=1), ["second_shot=1"]),
    ],
)
def test_mistakes(make, words):
    with pytest.raises(tw.ConfigError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), caught.value


def gradients(steps: int, size: int = 640) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(size, generator=generator) for _ in range(steps)]


def send(residuals: Residuals, names: tuple[str, ...], gradient: torch.Tensor) -> torch.Tensor:
    """One rank's step, whose wire is the codec alone; what was sent."""
    payload = gradient.clone()
    residuals.enter(payload, names, [], [])
    sent = INT2.decode(INT2.encode(payload[None], error=residuals.following(names)[None]), payload.numel())[0]
    residuals.leave(names, [])
    residuals.seen(sent)
    assert residuals.commit([names])
    return sent


@pytest.mark.parametrize(("form", "share"), [(Plain(), 1.0), (MovingAverage(beta=0.75, bits=32), 4.0)])
def test_nothing_is_lost_for_good(form, share):
    residuals, names = Residuals({"a": 600, "b": 40}, form), ("b", "a")
    given = gradients(30)
    sent = [send(residuals, names, one) for one in given]
    owed = residuals.current(names).double() * share
    total, expected = torch.stack(sent).double().sum(0) + owed, torch.stack(given).double().sum(0)
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-4)
    assert owed.norm() > 1


def test_each_form_makes_of_what_was_lost_what_it_says():
    names = ("a",)
    for form, keep, gain in ((Plain(), 0, 1), (Decayed(beta=0.5), 0, 0.5), (MovingAverage(beta=0.75, bits=32), 0.75, 0.25)):
        residuals, before = Residuals({"a": 640}, form), torch.zeros(640)
        for one in gradients(4):
            sent = send(residuals, names, one)
            before = keep * before + gain * (one + before - sent)
            torch.testing.assert_close(residuals.current(names), before, rtol=1e-5, atol=1e-6)
            before = residuals.current(names).clone()


def test_eight_bits_are_near_fp32_and_take_a_byte_an_element():
    size = 1 << 16
    packed, full = Residuals({"a": size}, MovingAverage()), Residuals({"a": size}, MovingAverage(bits=32))
    for one in gradients(6, size):
        for residuals in (packed, full):
            send(residuals, ("a",), one)
    assert packed.memory_bytes / size == pytest.approx(8.125 / 8)
    assert full.memory_bytes / size == 8
    apart = (packed.of("a") - full.of("a")).norm() / full.of("a").norm()
    assert apart < 0.1


def test_a_kept_row_encodes_to_itself():
    """So that a state, which has fp32, holds all of it."""
    codec = tw.codec("int8")
    generator = torch.Generator().manual_seed(1)
    for exponent in (-140.0, -126.0, -20.0, 0.0, 100.0):
        x = torch.randn(4, 1000, generator=generator) * 2.0**exponent
        x[1, ::7] *= 1000
        x[2, :200] = 0
        once = codec.encode(x)
        assert torch.equal(codec.encode(codec.decode(once, 1000)), once)


@pytest.mark.parametrize("form", [Plain(), Decayed(), MovingAverage(), MovingAverage(bits=32)])
def test_another_layout_state_and_idle_parameters_change_nothing(form):
    sizes = {"a": 300, "b": 40, "c": 300}
    residuals = Residuals(sizes, form)
    for one in gradients(3):
        send(residuals, ("a", "b", "c"), one)
    before = residuals.state_dict()
    assert all(value.any() for value in before.values())
    assert torch.equal(residuals.current(("c", "a")), torch.cat([before["c"], before["a"]]))
    other = Residuals(sizes, form)
    other.load_state_dict(before)
    assert torch.equal(other.current(("b", "a", "c")), torch.cat([before[n] for n in "bac"]))
    names, idle = ("c", "a"), [slice(0, 300)]
    residuals.following(names).copy_(torch.arange(600) / 7)
    residuals.following(names)[idle[0]] = 0
    residuals.leave(names, idle)
    residuals.commit([names])
    after = residuals.state_dict()
    assert torch.equal(after["c"], before["c"])
    assert torch.equal(after["b"], before["b"])
    assert not torch.equal(after["a"], before["a"])


@pytest.mark.parametrize("form", [Decayed(), MovingAverage(), MovingAverage(bits=32)])
def test_a_step_that_is_not_finite_and_a_loss_scale(form):
    residuals, names = Residuals({"a": 640}, form), ("a",)
    send(residuals, names, gradients(1)[0])
    before = residuals.of("a").clone()
    payload = gradients(1)[0]
    payload[3] = float("nan")
    residuals.enter(payload, names, [], [])
    INT2.encode(payload[None], error=residuals.following(names)[None])
    residuals.leave(names, [])
    residuals.seen(payload)
    assert not residuals.commit([names])
    assert torch.equal(residuals.of("a"), before)
    assert torch.equal(residuals.current(names), before)
    residuals.rescale(0.25)
    assert torch.equal(residuals.of("a"), before / 4)
    residuals.rescale(0.0)
    assert not residuals.current(names).any()


def test_a_reset_starts_at_zero():
    residuals, names = Residuals({"a": 640}, MovingAverage(reset=3)), ("a",)
    seen = []
    for one in gradients(7):
        send(residuals, names, one)
        seen.append(bool(residuals.of("a").any()))
    assert seen == [True, True, False, True, True, False, True]


def test_deep_gradient_compression_has_a_spec_too():
    rule = tw.DeepGradient(momentum=0.5, clip=0.25, warm_up_steps=8, nesterov=True)
    assert rule.spec() == "dgc:0.5;nesterov=true;clip=0.25;warm_up_steps=8"
    topk = tw.codec("topk")
    assert form_of(rule.spec(), topk) == rule
    assert form_of("dgc", topk) == tw.DeepGradient()
    assert form_of(None, topk) == Plain()
    with pytest.raises(tw.ConfigError, match="'int2' is not sparse"):
        form_of("dgc", INT2)
    with pytest.raises(tw.ConfigError, match="momentum='x' is out of range"):
        form_of("dgc:x", topk)


def test_one_bit_adam_takes_residuals_only():
    with pytest.raises(tw.ConfigError, match="has momentum of its own"):
        tw.optim.OneBitAdam(torch.nn.Linear(16, 32).parameters(), codec="topk", feedback="dgc", freeze_step=1)
