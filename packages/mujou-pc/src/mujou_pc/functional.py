"""The formulas of one update, without state.

The rule is predictive coding by an augmented Lagrangian (Seely and Gould 2026, arXiv:2605.31022) under the fixed
prediction assumption (Millidge, Tschantz and Buckley 2022, arXiv:2006.04182).

Signs: ``delta`` is an error, ``g_in`` and ``g_theta`` are gradients of the loss, so a node moves against
them. For a Layer ``g_in = -J_h^T delta`` and ``g_theta = -J_theta^T delta``, with the Jacobians of its
module with respect to the input and the weights.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mujou_pc._autograd import gradients
from mujou_pc._time_constants import TimeConstants
from mujou_pc.loss import Loss
from mujou_pc.relax import BoundRelaxer

__all__ = ["Vjp", "loss_vjp", "relax_", "select_rows", "vjp"]


class Vjp(NamedTuple):
    """An output and the gradients with respect to what it was computed from.

    None has a graph, and nobody else holds mu and g_in: send them as ``fresh``.

    Args:
        mu: the output of the module.
        g_in: the gradient for the input, in its shape.
        g_theta: the gradient for each weight, summed over the batch.
    """

    mu: Tensor
    g_in: Tensor
    g_theta: tuple[Tensor, ...]


def vjp(
    f: Callable[[Tensor], Tensor],
    h_in: Tensor,
    delta: Callable[[Tensor], Tensor],
    params: Sequence[Tensor] = (),
    mask: Tensor | None = None,
) -> Vjp:
    """The prediction of a node and the gradients its error sends back, in one product.

    Args:
        f: the module; called once, and once more only if a row without a target made the weights' gradients NaN.
        h_in: the activity from the node before, (B, ...). It is detached: no graph crosses nodes.
        delta: makes the error from the prediction mu, both (B, ...).
        params: the weights to differentiate; none when the node does not learn. A frozen or
            unused one gets zeros.
        mask: bool (B,); the error of rows with False is left out, whatever they hold. None: no row is.

    Raises:
        RuntimeError: the module wrote into its input.

    Example:
        >>> linear = torch.nn.Linear(3, 2)
        >>> mu, g_in, (g_weight, g_bias) = vjp(linear, torch.ones(4, 3), torch.ones_like, tuple(linear.parameters()))
        >>> mu.shape, g_in.shape, g_bias
        (torch.Size([4, 2]), torch.Size([4, 3]), tensor([-4., -4.]))
    """
    if torch.is_inference_mode_enabled():  # it knows no gradients
        with torch.inference_mode(False):
            return vjp(f, h_in, delta, params, mask)
    leaf, mu = _run(f, h_in)
    value = mu.detach().clone()
    error = select_rows(delta(value), mask)
    if not params:  # one operation makes the sign and a tensor that nobody else holds
        (g_in,) = _gradients(mu, (leaf,), error)
        return Vjp(value, select_rows(g_in.neg(), mask), ())
    g_in, *g_theta = _gradients(mu, (leaf, *params), error.neg())
    if mask is not None and _any_nan(g_theta):
        g_theta = _of_rows_with_target(f, h_in, error, params, mask)
    return Vjp(value, select_rows(g_in.clone(), mask), tuple(g_theta))


def loss_vjp(
    f: Callable[[Tensor], Tensor],
    h_in: Tensor,
    loss: Loss,
    y: Tensor,
    mask: Tensor | None = None,
    params: Sequence[Tensor] = (),
) -> Vjp:
    """The output of the last module and the gradients of the summed loss of the samples with a target.

    Args:
        f: the module; called as often as in ``vjp``.
        h_in: the activity from the node before, (B, ...), detached.
        loss: gives one value for each sample.
        y: the targets, (B, ...).
        mask: bool (B,); rows with False are left out, whatever they hold. None: no row is.
        params: the weights to differentiate.

    Raises:
        ValueError: the loss does not have the shape (B,).
        RuntimeError: the module wrote into its input.

    Example:
        >>> from mujou_pc.loss import MSELoss
        >>> y_hat, g_in, _ = loss_vjp(torch.nn.Identity(), torch.ones(2, 3), MSELoss(), torch.zeros(2, 3))
        >>> g_in[0]
        tensor([0.6667, 0.6667, 0.6667])
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return loss_vjp(f, h_in, loss, y, mask, params)
    leaf, y_hat = _run(f, h_in)
    value = y_hat.detach().clone()
    total = _total_loss(loss, y_hat, y, mask)
    g_in, *g_theta = _gradients(total, (leaf, *params), torch.ones_like(total))
    if mask is not None and _any_nan(g_theta):
        output = y_hat.detach().requires_grad_()
        (g_out,) = _gradients(_total_loss(loss, output, y, mask), (output,), torch.ones_like(total))
        g_theta = _of_rows_with_target(f, h_in, g_out.neg(), params, mask)
    return Vjp(value, select_rows(g_in.clone(), mask), tuple(g_theta))


def relax_(
    r: Tensor,
    lam: Tensor,
    g: Tensor,
    *,
    dt: float,
    tau: TimeConstants,
    relaxer: BoundRelaxer,
) -> None:
    """Move the deviation along its force, then the dual along the moved deviation, in place.

    The force is ``F = (1 + tau_h / tau_r) r + lam + g``. The relaxer moves r by it, with Euler
    ``r -= dt / tau_h F``; then ``lam += dt / tau_lam r``.

    Args:
        r: the deviation, (B, ...).
        lam: the dual, (B, ...).
        g: the summed gradient from the next nodes, (B, ...).
        dt: seconds; 0 moves nothing.
        tau: the time constants.
        relaxer: what moves r.

    Example:
        >>> from mujou_pc.relax import Euler
        >>> r, lam, g = torch.zeros(1), torch.zeros(1), torch.ones(1)
        >>> tau = TimeConstants(h=0.02, lam=0.01, r=0.02)
        >>> relax_(r, lam, g, dt=tau.period, tau=tau, relaxer=Euler().bind(r))
        >>> r + lam  # one update of the usual time constants: -g
        tensor([-1.])
    """
    if dt == 0:
        return
    force = torch.add(lam, g).add_(r, alpha=1 + tau.h / tau.r)
    relaxer.step_(r, force, dt, tau.h)
    lam.add_(r, alpha=dt / tau.lam)


def select_rows(values: Tensor, mask: Tensor | None) -> Tensor:
    """The values, with 0 in the rows whose mask is False, even where those hold NaN.

    Args:
        values: (B, ...).
        mask: bool (B,); None leaves all as they are.

    Example:
        >>> select_rows(torch.tensor([1.0, torch.nan]), torch.tensor([True, False]))
        tensor([1., 0.])
    """
    if mask is None:
        return values
    return torch.where(_as_rows(mask, values), values, torch.zeros_like(values))


def _as_rows(mask: Tensor, values: Tensor) -> Tensor:
    """The mask (B,) in a shape that broadcasts against ``values``."""
    return mask.view(-1, *[1] * (values.dim() - 1))


def _run(f: Callable[[Tensor], Tensor], h_in: Tensor) -> tuple[Tensor, Tensor]:
    """The input as the leaf of a graph of its own, and the output."""
    leaf = h_in.detach().requires_grad_(h_in.is_floating_point())
    version = leaf._version
    if torch.is_grad_enabled():  # to ask is cheaper than to enter a context
        output = f(leaf)
    else:
        with torch.enable_grad():
            output = f(leaf)
    if leaf._version != version:
        raise RuntimeError(
            "the module wrote into its input in place, but other nodes read the same tensor: let it work on a copy "
            "(h_in.clone(), inplace=False)"
        )
    return leaf, output


# Rows without a target are replaced before the loss and left out after it: the first keeps NaN and
# classes out of range from the loss, the second keeps its value at the replacement out of the sum.
def _total_loss(loss: Loss, y_hat: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
    with torch.enable_grad():
        losses = loss(select_rows(y_hat, mask), select_rows(y, mask))
        if losses.shape != y_hat.shape[:1]:
            raise ValueError(
                f"the loss returned the shape {list(losses.shape)}, but one value for each sample is "
                f"needed, (B,) = {list(y_hat.shape[:1])}: average over every axis but the first"
            )
        return select_rows(losses, mask).sum()


# The error of a row without a target is 0, but 0 times an infinite activation is NaN. In such an update the module runs
# once more, with a row that has a target in the place of each that has none.
def _of_rows_with_target(
    f: Callable[[Tensor], Tensor], h_in: Tensor, error: Tensor, params: Sequence[Tensor], mask: Tensor
) -> Sequence[Tensor]:
    if not mask.any():
        return [torch.zeros_like(param, requires_grad=False) for param in params]
    stand_in = h_in[mask.int().argmax()]
    return vjp(f, torch.where(_as_rows(mask, h_in), h_in, stand_in), lambda mu: error, params).g_theta


def _any_nan(tensors: Sequence[Tensor]) -> bool:
    return any(bool(tensor.isnan().any()) for tensor in tensors)


def _gradients(output: Tensor, inputs: tuple[Tensor, ...], grad_output: Tensor) -> list[Tensor]:
    """The gradient for each input; zeros where there is none."""
    if output.requires_grad and all([tensor.requires_grad for tensor in inputs]):
        found = gradients(output, inputs, grad_output)
    else:
        wanted = tuple(tensor for tensor in inputs if tensor.requires_grad) if output.requires_grad else ()
        grads = gradients(output, wanted, grad_output) if wanted else ()
        of = {id(tensor): grad for tensor, grad in zip(wanted, grads, strict=True)}
        found = [of.get(id(tensor)) for tensor in inputs]
    return [_zeros_for(t, output) if grad is None else grad for t, grad in zip(inputs, found, strict=True)]


def _zeros_for(tensor: Tensor, output: Tensor) -> Tensor:
    dtype = tensor.dtype if tensor.is_floating_point() else output.dtype
    return torch.zeros(tensor.shape, dtype=dtype, device=tensor.device)
