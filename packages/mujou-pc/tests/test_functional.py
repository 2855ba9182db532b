"""The formulas of one update, against a dense Jacobian."""

import weakref

import pytest
import torch
from torch import nn

from mujou_pc import _autograd
from mujou_pc.functional import loss_vjp, select_rows, vjp
from mujou_pc.loss import CrossEntropyLoss, MSELoss

from .helpers import dense


def test_vjp_is_minus_the_jacobians_times_the_error():
    module, h_in, error = dense(5, 3), torch.randn(2, 5), torch.randn(2, 3)
    mu, g_in, g_theta = vjp(module, h_in, lambda mu: error, tuple(module.parameters()))
    torch.testing.assert_close(mu, module(h_in).detach())
    jacobian = torch.autograd.functional.jacobian(module, h_in)
    torch.testing.assert_close(g_in, -torch.einsum("bo,bohi->hi", error, jacobian))
    weight = module[0].weight

    def of_weight(w):
        return torch.func.functional_call(module, {"0.weight": w}, (h_in,))

    j_theta = torch.autograd.functional.jacobian(of_weight, weight.detach())
    torch.testing.assert_close(g_theta[0], -torch.einsum("bo,boij->ij", error, j_theta))


def test_the_error_may_depend_on_the_prediction():
    module, h_in = nn.Linear(3, 3), torch.randn(2, 3)
    mu, g_in, _ = vjp(module, h_in, lambda mu: 2 * mu)
    torch.testing.assert_close(g_in, -2 * mu @ module.weight.detach())


def test_loss_vjp_is_the_gradient_of_the_summed_loss():
    module, h_in, y = dense(5, 3), torch.randn(4, 5), torch.randint(0, 3, (4,))
    y_hat, g_in, g_theta = loss_vjp(module, h_in, CrossEntropyLoss(), y, None, tuple(module.parameters()))
    h = h_in.clone().requires_grad_()
    wanted = torch.autograd.grad(nn.functional.cross_entropy(module(h), y, reduction="sum"), [h, *module.parameters()])
    for ours, theirs in zip([g_in, *g_theta], wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(y_hat, module(h_in).detach())


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.enable_grad])
def test_nothing_that_comes_out_has_a_graph(grad_mode):
    module = dense(3, 3)
    h_in = torch.randn(2, 3, requires_grad=True) * 1
    with grad_mode():
        mu, g_in, g_theta = vjp(module, h_in, lambda mu: mu, tuple(module.parameters()))
    assert all(t.grad_fn is None and not t.requires_grad for t in (mu, g_in, *g_theta))
    assert all(p.grad is None for p in module.parameters())


class Odd(nn.Module):
    """A weight that learns, one that is frozen, and one that nothing uses."""

    def __init__(self):
        super().__init__()
        self.used = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2, 2))

    def forward(self, h):
        return h * self.used + self.frozen


def test_frozen_and_unused_weights_get_zeros_of_their_shape():
    module = Odd()
    _, _, (used, frozen, unused) = vjp(module, torch.randn(2, 3), lambda mu: mu, tuple(module.parameters()))
    assert float(used.abs().max()) > 0
    assert torch.equal(frozen, torch.zeros(3))
    assert torch.equal(unused, torch.zeros(2, 2))
    assert not any(g.requires_grad for g in (used, frozen, unused))


@pytest.mark.parametrize("module", [nn.Identity(), nn.Flatten(), nn.ReLU()])
def test_a_module_without_weights_sends_gradients_back(module):
    h_in = torch.rand(2, 3) + 1
    _, g_in, g_theta = vjp(module, h_in, lambda mu: mu)
    torch.testing.assert_close(g_in, -h_in)
    assert g_theta == ()


def test_a_module_that_ignores_its_input_sends_zeros_back():
    _, g_in, _ = vjp(lambda h: torch.ones(2, 4), torch.randn(2, 3), lambda mu: mu)
    assert torch.equal(g_in, torch.zeros(2, 3))


def test_an_input_of_integers_gets_zeros_and_the_weights_their_gradient():
    module = nn.Embedding(5, 3)
    _, g_in, (g_theta,) = vjp(module, torch.tensor([[1], [4]]), lambda mu: mu, tuple(module.parameters()))
    assert torch.equal(g_in, torch.zeros(2, 1))
    assert g_theta[[1, 4]].abs().min() > 0


class Exponential(nn.Module):
    """Its activations leave the range of floats already for moderate inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, h):
        return self.last(self.first(h).exp())


MASK = torch.tensor([True, False, True, False])


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(3, 2), lambda: dense(3, 2), Exponential], ids=["line", "tanh", "exp"]
)
@pytest.mark.parametrize("holder", ["h_in", "y", "delta"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 1e4])
def test_rows_without_a_target_are_left_out_whatever_they_hold(make, holder, poison):
    module = make()
    params = tuple(module.parameters())
    given = {"h_in": torch.randn(4, 3), "y": torch.randn(4, 2), "delta": torch.randn(4, 2)}
    given[holder][~MASK] = poison

    def gradients(h_in, y, delta, mask):
        of_error = vjp(module, h_in, lambda mu: delta, params, mask)
        of_loss = loss_vjp(module, h_in, MSELoss(), y, mask, params)
        without = vjp(module, h_in, lambda mu: delta, (), mask)
        return [of_error.g_in, of_loss.g_in, without.g_in], [*of_error.g_theta, *of_loss.g_theta]

    g_in, g_theta = gradients(**given, mask=MASK)
    some, wanted = gradients(**{name: value[MASK] for name, value in given.items()}, mask=None)
    for ours, theirs in zip(g_in, some, strict=True):
        torch.testing.assert_close(ours[MASK], theirs)
        assert torch.equal(ours[~MASK], torch.zeros(2, 3))
    for ours, theirs in zip(g_theta, wanted, strict=True):
        assert float(ours.abs().max()) > 0
        torch.testing.assert_close(ours, theirs)


def test_a_row_without_a_target_is_still_predicted_from_what_it_holds():
    module, h_in = nn.Linear(3, 2), torch.randn(4, 3)
    h_in[1] = torch.nan
    mu = vjp(module, h_in, lambda mu: mu, tuple(module.parameters()), MASK).mu
    torch.testing.assert_close(mu, module(h_in).detach(), equal_nan=True)


def test_a_row_with_a_target_that_holds_nan_is_not_hidden():
    module, h_in = nn.Linear(3, 2), torch.randn(4, 3)
    h_in[0] = torch.nan
    _, _, (weight, _) = vjp(module, h_in, torch.ones_like, tuple(module.parameters()), MASK)
    assert bool(weight.isnan().all())


def test_losses_that_are_nan_without_a_target_change_nothing():
    module, h_in, y = nn.Linear(3, 2), torch.randn(4, 3), torch.randn(4, 2)

    def root(y_hat, y):  # its slope at equality is infinite
        return (y_hat - y).abs().sum(1).sqrt()

    _, g_in, g_theta = loss_vjp(module, h_in, root, y, MASK, tuple(module.parameters()))
    _, some, wanted = loss_vjp(module, h_in[MASK], root, y[MASK], None, tuple(module.parameters()))
    torch.testing.assert_close(g_in[MASK], some)
    torch.testing.assert_close(list(g_theta), list(wanted))


def test_with_no_target_at_all_the_gradients_are_zero_whatever_the_rows_hold():
    module, nobody = Exponential(), torch.zeros(2, dtype=torch.bool)
    h_in = torch.tensor([[torch.nan] * 3, [1e4] * 3])
    params = tuple(module.parameters())
    for _, g_in, g_theta in (
        vjp(module, h_in, lambda mu: mu, params, nobody),
        loss_vjp(module, h_in, MSELoss(), torch.full((2, 2), torch.nan), nobody, params),
    ):
        assert all(torch.equal(g, torch.zeros_like(g)) for g in (g_in, *g_theta))


def test_what_comes_out_shares_its_memory_with_nothing():
    h_in = torch.randn(4, 3)
    held = [torch.randn(4, 3), h_in]
    for mask in (None, MASK):
        for mu, g_in, _ in (
            vjp(nn.Identity(), h_in, lambda mu: held[0], (), mask),
            vjp(nn.Identity(), h_in, lambda mu: held[0], (nn.Parameter(torch.ones(1)),), mask),
            loss_vjp(nn.Identity(), h_in, MSELoss(), torch.zeros(4, 3), mask),
        ):
            places = [t.untyped_storage().data_ptr() for t in (mu, g_in, *held)]
            assert len(set(places)) == 4


def test_a_class_out_of_range_and_infinite_logits_in_a_masked_row_change_nothing():
    mask = torch.tensor([True, False])
    logits = torch.tensor([[1.0, 2.0], [torch.inf, -torch.inf]])
    _, g_in, _ = loss_vjp(nn.Identity(), logits, CrossEntropyLoss(), torch.tensor([1, -7]), mask)
    assert torch.isfinite(g_in).all()
    assert torch.equal(g_in[1], torch.zeros(2))


def test_with_every_row_masked_the_gradients_are_exactly_zero():
    module = nn.Linear(3, 2)
    mask, y = torch.zeros(2, dtype=torch.bool), torch.full((2,), -100)
    _, g_in, g_theta = loss_vjp(module, torch.randn(2, 3), CrossEntropyLoss(), y, mask, tuple(module.parameters()))
    assert all(float(g.abs().max()) == 0 for g in (g_in, *g_theta))


@pytest.mark.parametrize(
    "loss",
    [lambda a, b: ((a - b) ** 2).mean(), lambda a, b: ((a - b) ** 2).sum(1, keepdim=True)],
    ids=["scalar", "column"],
)
def test_a_loss_that_is_not_one_value_for_each_sample_is_refused(loss):
    with pytest.raises(ValueError, match=r"\(B,\) = \[4\]"):
        loss_vjp(nn.Identity(), torch.zeros(4, 2), loss, torch.zeros(4, 2))


def test_without_the_engine_torchs_own_function_gives_the_same(monkeypatch):
    module, h_in = dense(3, 2), torch.randn(4, 3)
    found = []
    for engine in (_autograd.ENGINE, None):
        monkeypatch.setattr(_autograd, "ENGINE", engine)
        result = vjp(module, h_in, torch.sin, tuple(module.parameters()))
        found.append([result.mu, result.g_in, *result.g_theta])
    assert _autograd.ENGINE is None
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_an_error_of_another_shape_than_the_prediction_is_refused():
    with pytest.raises(ValueError, match=r"shape of the prediction, \[4, 2\], but has \[4, 1\]"):
        vjp(nn.Linear(3, 2), torch.randn(4, 3), lambda mu: mu[:, :1])


def test_in_inference_mode_the_gradients_are_the_same():
    module, h_in, y = dense(3, 2), torch.randn(4, 3), torch.randn(4, 2)
    params = tuple(module.parameters())
    found = []
    for inference in (False, True):
        with torch.inference_mode(inference):
            results = vjp(module, h_in, torch.sin, params), loss_vjp(module, h_in, MSELoss(), y, None, params)
            found.append([g for result in results for g in (result.mu, result.g_in, *result.g_theta)])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert not any(t.is_inference() for t in found[1])


class WritesIntoItsInput(nn.Module):
    def forward(self, h):
        return h.detach().add_(1) * 1.0


@pytest.mark.parametrize("module", [WritesIntoItsInput(), nn.ReLU(inplace=True)], ids=["detached", "leaf"])
def test_a_module_that_writes_into_its_input_is_refused(module):
    with pytest.raises(RuntimeError, match=r"in.?place"):
        vjp(module, torch.randn(2, 3), lambda mu: mu)


def test_a_module_is_called_once():
    calls = []
    module = dense(3, 3)
    module.register_forward_hook(lambda *_: calls.append(1))
    vjp(module, torch.randn(2, 3), lambda mu: mu, tuple(module.parameters()))
    assert len(calls) == 1


def test_nothing_is_kept_of_the_graph_when_the_result_is_there():
    module, seen = dense(3, 3), []

    def remember(h):
        seen.append(weakref.ref(h))
        return module(h)

    result = vjp(remember, torch.randn(2, 3), lambda mu: mu)
    assert seen[0]() is None
    assert result.mu.shape == (2, 3)


def test_select_rows_puts_zero_where_the_mask_is_false():
    values = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    assert torch.equal(select_rows(values, torch.tensor([False, True])), torch.tensor([[0.0, 0.0], [2.0, 3.0]]))
    assert select_rows(values, None) is values
