"""Tests infra/onednn.py: products by oneDNN are torch's, and a model that samples is restored."""

import pytest
import torch

from infra import onednn
from infra.onednn import fast_linear, packed_weights, use_fast_products

pytestmark = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="needs oneDNN's products"
)


@pytest.fixture
def model():
    """Two layers that are packed, and one that is too small."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(256, 300), torch.nn.Linear(300, 256), torch.nn.Linear(256, 8)]
    model = torch.nn.Sequential(*layers)
    use_fast_products(model)
    model.device, model.dtype = torch.device("cpu"), torch.float32  # as a PreTrainedModel has them
    return model


@torch.no_grad()
def test_packed_layers_compute_x_w_b_and_are_then_as_before(model):
    x = torch.randn(3, 1, 256, generator=torch.Generator().manual_seed(1))
    plain = model[0](x)
    with packed_weights(model):
        assert [layer.packed is not None for layer in model] == [True, True, False]
        torch.testing.assert_close(model[0](x), plain, rtol=1e-5, atol=1e-5)
        biased = torch.nn.functional.linear(plain, model[1].weight, model[1].bias)
        torch.testing.assert_close(model[1](plain), biased, rtol=1e-5, atol=1e-5)
    assert [layer.packed for layer in model] == [None, None, None]
    assert torch.equal(model[0](x), plain)


@torch.no_grad()
def test_weights_are_packed_anew_after_an_update(model):
    x = torch.ones(1, 256)
    with packed_weights(model):
        old = model[0](x)
    model[0].weight += 1
    with packed_weights(model):
        torch.testing.assert_close(model[0](x), old + 256)


def test_other_models_and_a_torch_without_the_operations_sample_as_ever(model, monkeypatch):
    model.dtype = torch.bfloat16
    with packed_weights(model):
        assert model[0].packed is None
    model.dtype = torch.float32
    monkeypatch.setattr(onednn, "NAMES", ("_reorder_linear_weight", "_renamed"))
    with packed_weights(model):
        assert model[0].packed is None


def results(product, x, W, b, upstream) -> list[torch.Tensor]:
    """The product and its gradients, in float64."""
    inputs = [each.detach().clone().requires_grad_() for each in (x, W, b) if each is not None]
    y = product(*inputs)
    return [each.detach().double() for each in (y, *torch.autograd.grad(y, inputs, upstream.to(y)))]


@pytest.mark.parametrize("shape", [(600,), (1,), (3, 20), (0,), (2, 0)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("one_number", [True, False])
def test_values_and_gradients_are_those_of_torch(shape, biased, one_number):
    """The errors against float64 are compared with torch's own errors.

    one_number: whether the gradient is expanded, with strides of 0, as the gradient of a sum is.
    """
    g = torch.Generator().manual_seed(0)
    x, W, b = (torch.randn(*size, generator=g) for size in ((*shape, 256), (300, 256), (300,)))
    upstream = torch.randn(*shape, 300, generator=g)
    upstream = torch.ones(()).expand(upstream.shape) if one_number else upstream
    given = (x, W, b if biased else None)
    doubles = [None if each is None else each.double() for each in given]
    exact = results(torch.nn.functional.linear, *doubles, upstream)
    plain = results(torch.nn.functional.linear, *given, upstream)
    for ours, theirs, expected in zip(
        results(fast_linear, *given, upstream), plain, exact, strict=True
    ):
        assert ours.shape == expected.shape
        error, allowed = (float((each - expected).norm()) for each in (ours, theirs))
        assert error <= 2 * allowed + 1e-7 * float(expected.norm())


def test_a_model_that_is_trained_multiplies_so_if_its_layers_are_large(model, monkeypatch):
    def fast(layer) -> bool:
        x = torch.ones(2, layer.in_features, dtype=layer.weight.dtype)
        return "ProductBackward" in str(layer(x).grad_fn)

    assert [fast(layer) for layer in model] == [True, True, False]
    with monkeypatch.context() as renamed:
        renamed.setattr(onednn, "NAMES", ("_renamed",))
        assert not fast(model[0])
    assert not fast(model[0].bfloat16())


def test_a_second_derivative_is_refused_and_a_strided_bias_is_read_right():
    """Otherwise a Hessian-vector product would be wrong, without a message."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5, 256, generator=g, requires_grad=True)
    W = torch.randn(300, 256, generator=g, requires_grad=True)
    (slope,) = torch.autograd.grad(fast_linear(x, W).square().sum(), W, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
    bias = torch.randn(300, 2, generator=g)[:, 1]
    expected = torch.nn.functional.linear(x, W, bias)
    torch.testing.assert_close(fast_linear(x, W, bias), expected, rtol=1e-5, atol=1e-4)
