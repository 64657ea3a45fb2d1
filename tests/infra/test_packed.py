"""infra/packed.py: a model that samples with packed weights is the same model, and is restored."""

from functools import partial

import pytest
import torch

from infra import packed
from infra.packed import packed_weights

pytestmark = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="needs oneDNN's products"
)


@pytest.fixture
def model():
    """Two layers that are packed, the second with a forward of its own, and a small one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(256, 300), torch.nn.Linear(300, 256), torch.nn.Linear(256, 8)]
    layers[1].forward = partial(torch.nn.functional.linear, weight=layers[1].weight)
    model = torch.nn.Sequential(*layers)
    model.device, model.dtype = torch.device("cpu"), torch.float32  # as a PreTrainedModel has them
    return model


@torch.no_grad()
def test_packed_layers_compute_x_w_b_and_are_then_as_before(model):
    x = torch.randn(3, 1, 256, generator=torch.Generator().manual_seed(1))
    before = [vars(layer).get("forward") for layer in model]
    plain = model[0](x)
    with packed_weights(model):
        replaced = ["forward" in vars(layer) for layer in model]
        assert replaced == [True, True, False]
        torch.testing.assert_close(model[0](x), plain, rtol=1e-5, atol=1e-5)
        biased = torch.nn.functional.linear(plain, model[1].weight, model[1].bias)
        torch.testing.assert_close(model[1](plain), biased, rtol=1e-5, atol=1e-5)
    assert [vars(layer).get("forward") for layer in model] == before
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
        assert "forward" not in vars(model[0])
    model.dtype = torch.float32
    monkeypatch.setattr(packed, "NAMES", ("_reorder_linear_weight", "_renamed"))
    with packed_weights(model):
        assert "forward" not in vars(model[0])
