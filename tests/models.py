"""Tiny random models of many architectures, and changes to the files of a model's folder.

`PYTHONPATH=. python tests/models.py` measures them, and prints the table of docs/models.md.
"""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import mkdtemp
from unittest import mock

import torch
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

import toy
from infra import sampler
from infra.ranks import start_ranks
from loading import load_policy
from rollout import Sampling, rollout

ARCHITECTURES = Path(__file__).parent / "data" / "architectures.yaml"
KINDS = yaml.safe_load(ARCHITECTURES.read_text())
SMALL, REFUSED = KINDS.pop("all"), KINDS.pop("refused")
VOCABULARY = SMALL["vocab_size"]
WHOLE = KINDS["text and images: the language model inside"]
RECURRENT = KINDS["recurrent layers beside attention"] | KINDS["recurrent layers only"]
EXACT = KINDS["attention"] | KINDS["attention, of 2025 and 2026"] | RECURRENT


def random_lm(name: str, **changes) -> torch.nn.Module:
    """A `name` model with random weights. changes: of its (language model's) config."""
    if name in WHOLE:
        inside, vision, more = WHOLE[name]
        text = SMALL | EXACT[inside] | {"model_type": inside, "final_logit_softcapping": None}
        config = CONFIG_MAPPING[name](text_config=text | changes, vision_config=vision, **more)
        kind = AutoModelForMultimodalLM
    else:
        config = CONFIG_MAPPING[name](**(SMALL | (EXACT | REFUSED)[name] | changes))
        kind = AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm = kind.from_config(config)
        for parameter in lm.parameters():  # including biases, which start at 0
            parameter.data += 0.15 * torch.randn_like(parameter)
    return lm.eval()


def save_random_model(name: str, folder, **changes) -> None:
    """Save a random model, along with the toy's tokenizer."""
    random_lm(name, **changes).save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)


def published_model(name: str, folder) -> torch.nn.Module:
    """The model as from_pretrained returns it."""
    kind = AutoModelForMultimodalLM if name in WHOLE else AutoModelForCausalLM
    return kind.from_pretrained(folder).eval()


def response_logits(lm, prompt, tokens) -> torch.Tensor:
    """The logits [n, V] of n tokens behind a prompt, from one pass without a cache."""
    ids = torch.tensor([[*prompt, *tokens]]).long()
    return lm(ids).logits[0, len(prompt) - 1 : -1].float()


@torch.no_grad()
def sampling_difference(published, folder, policy) -> float:
    """The largest difference of a sampled token's log p from the published model's, in nats.

    The published model reads each sequence at once, without a cache. Responses are longer than
    every window. With chunks of 8 tokens and 4 of 6 responses in flight, some responses leave while
    others arrive. Some prompts have a single token. folder: with the model's tokenizer.
    """
    prompts = [random_ids(1).tolist(), random_ids(11, seed=1).tolist()]
    sampling = Sampling(14, policy.temperature, seed=7, in_flight=4)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with policy.unsharded() as lm, mock.patch.object(sampler, "CHUNK", 8):
        sampled = rollout(lm, tokenizer, prompts, [0, 1], 3, sampling)
    assert max(len(each.tokens) for each in sampled) == 14

    worst = 0.0
    for each in sampled:
        logits = response_logits(published, each.prompt, each.tokens)
        logp = (logits / policy.temperature).log_softmax(-1)
        tokens = torch.from_numpy(each.tokens).long()
        expected = logp.gather(1, tokens[:, None]).squeeze(1)
        worst = max(worst, float((torch.from_numpy(each.logprob) - expected).abs().max()))
    return worst


def byte_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """A tokenizer for any text: a token per byte, and special ones; the end token is <end>."""
    alphabet = sorted(ByteLevel.alphabet())
    tokens = {token: i for i, token in enumerate([*alphabet, "<end>"])}
    words = Tokenizer(BPE(tokens, []))
    words.pre_tokenizer, words.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", **special)


def random_ids(length: int, seed: int = 0) -> torch.Tensor:
    """Random ids [length], without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (length,), generator=generator)


def change_config(folder, **changes) -> None:
    """Set keys of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder, change) -> None:
    """Rewrite model.safetensors with change(dictionary of its tensors)."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def print_table() -> None:
    """Measure every architecture, and print the table of docs/models.md."""
    start_ranks()
    print("| layers | architectures | largest difference of log p, nats |\n|---|---|---|")
    for kind, names in KINDS.items():
        worst = 0.0
        for name in names:
            folder = Path(mkdtemp()) / name
            save_random_model(name, folder)
            with redirect_stdout(sys.stderr):
                policy, _ = load_policy(folder, temperature=0.7)
            published = published_model(name, folder)
            worst = max(worst, sampling_difference(published, folder, policy))
        print(f"| {kind} | {', '.join(names)} | {worst:.1e} |", flush=True)


if __name__ == "__main__":
    print_table()
