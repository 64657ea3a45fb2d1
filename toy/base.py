"""The toy's base models: a small Qwen3 that knows the format but errs in the arithmetic.

Reinforcement learning needs a model that is sometimes right. This model is trained from scratch on
demonstrations with errors (toy/task.py), so reinforcement learning can reduce its errors.

Some base models are committed in toy/bases, so that every machine starts from the same weights
(README.md lists them). For other arguments the first call trains the model and keeps it in .cache.
All are Hugging Face folders with weights in float16; in memory the weights are float32.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from toy.task import demonstration, problems
from toy.tokenizer import TOKEN_ID, VOCABULARY, build_tokenizer

HERE = Path(__file__).parent
BASES = HERE / "bases"
CACHE = HERE.parent / ".cache"
CODE_BASE = "learn-code-noise0.1-seed0"

# Results are learnt after about 300 steps, but copying the right digit of 12 can take 700. A model
# that miscopies hardly learns from rewards.
STEPS = 1000
WARM_UP = 50  # of these
PEAK_RATE = 3e-3
LAST_RATE = 0.1  # a share of the peak


@dataclass(frozen=True)
class Base:
    """A base model: its demonstration settings (toy/task.py) and its training seed.

    The defaults are for the regime `sharpen`.
    """

    k: int = 5  # operations in a problem
    noise: float = 0.2
    seed: int = 0
    regime: str = "sharpen"

    @property
    def name(self) -> str:
        """Such as `learn-k5-noise0.1-seed0`."""
        return f"{self.regime}-k{self.k}-noise{float(self.noise)}-seed{self.seed}"


def build_model(
    hidden: int = 64, layers: int = 2, vocabulary: int = len(VOCABULARY)
) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3, by default with 0.1 million parameters.

    The head dimension is 16, with half as many heads for keys and values. The MLP is three times as
    wide as `hidden`. The padding and end tokens have the same ids in all toy vocabularies.
    """
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 16,
        num_key_value_heads=hidden // 32,
        head_dim=16,
        intermediate_size=3 * hidden,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=TOKEN_ID["<pad>"],
        eos_token_id=TOKEN_ID["<eos>"],
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def rate_factor(step: int, steps: int) -> float:
    """The learning rate of a step, counted from 0, as a share of its peak.

    The rate rises over WARM_UP steps to 1, then falls to LAST_RATE at the last step. It does not
    fall to 0, because reinforcement learning hardly improves a model that was annealed to 0.
    """
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    progress = (step + 1 - WARM_UP) / max(1, steps - WARM_UP)
    return 1 - (1 - LAST_RATE) * progress


def train_base(base: Base, steps: int = STEPS, batch: int = 64) -> Qwen3ForCausalLM:
    """Supervised training from scratch on fresh noisy demonstrations, a minute or two on one core.

    batch: demonstrations per step. torch's global random state does not change. Samples from the
    trained base are right as often as its demonstrations.
    """
    rng = np.random.default_rng([base.seed, 1])
    with torch.random.fork_rng():
        torch.manual_seed(base.seed)
        model = build_model()

    def draw() -> tuple[list[str], list[str]]:
        texts = [p["problem"] for p in problems(batch, seed=int(rng.integers(2**31)), k=base.k)]
        return texts, [demonstration(text, rng, base.noise, base.regime) for text in texts]

    return fit(model, build_tokenizer(), draw, steps)


def fit(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    draw: Callable[[], tuple[list[str], list[str]]],
    steps: int,
) -> Qwen3ForCausalLM:
    """Train `model` in place, supervised; draw() returns a batch's problems and responses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, steps))

    for _ in range(steps):
        ids, labels = supervised_batch(tokenizer, *draw())
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def supervised_batch(
    tokenizer: PreTrainedTokenizerFast, texts: list[str], answers: list[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels [B, L] for problems and their responses, padded on the right.

    Only the response and its end token are learnt: labels of -100 do not count in the loss.
    """
    ids, labels = [], []
    for text, answer in zip(texts, answers, strict=True):
        prompt_ids = tokenizer(text).input_ids
        answer_ids = tokenizer(answer + "<eos>").input_ids
        ids.append(torch.tensor(prompt_ids + answer_ids))
        labels.append(torch.tensor([-100] * len(prompt_ids) + answer_ids))

    # No attention mask: padding after the end does not change earlier positions.
    padding = TOKEN_ID["<pad>"]
    return (
        pad_sequence(ids, batch_first=True, padding_value=padding),
        pad_sequence(labels, batch_first=True, padding_value=-100),
    )


def save_base(model: Qwen3ForCausalLM, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write the model in float16, with its tokenizer, as a Hugging Face folder.

    The folder is written under a temporary name and then renamed, so it is never incomplete. If the
    folder already exists (another process was faster), it stays unchanged.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        written = Path(aside) / "model"
        model.half().save_pretrained(written)
        tokenizer.save_pretrained(written)
        if not folder.exists():
            os.rename(written, folder)


def base_folder(*settings, cache: Path = CACHE, **named) -> Path:
    """A base model's Hugging Face folder; takes the same arguments as `Base`.

    Returns the committed folder if it exists, else a folder in `cache`, built when needed.
    """
    base = Base(*settings, **named)
    committed = BASES / base.name
    if committed.exists():
        return committed

    folder = Path(cache) / f"toy-{base.name}"
    if not folder.exists():
        print(f"building the toy's base model {base.name} (once; a minute or two)", flush=True)
        save_base(train_base(base), folder, build_tokenizer())
    return folder


def base_model(*settings, **named) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A base model in float32 and its tokenizer; takes the arguments of `base_folder`."""
    folder = base_folder(*settings, **named)
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)
