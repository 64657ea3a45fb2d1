"""The embedded default: a chain of sums mod 10, a 30-word tokenizer and a 0.13 M-parameter Qwen3, made here in seconds.

A problem is a chain of k operations on one digit, worked from left to right, everything mod 10. A response opens each
step with `filler` connectives drawn at random, copies the two operands, states one result, and ends in a box:

    problem   7*6+1-4=?            (k = 3, answer 9)
    response  So 7*6=2             7*6 = 42
              Then 2+1=3
              Now 3-4=9            3-4 = -1
              answer \\boxed{9}

The base model is trained on demonstrations in which each result is, with probability `noise`, a random digit from which
the chain then goes on. It so knows the format and errs in the arithmetic: something for RLVR to mend. Few tokens decide
the answer (the results), many do not (connectives, copies, the frame), and here, as on no real data set, we know which:
`decisive` marks them.
"""
import hashlib, os, tempfile
from pathlib import Path

import numpy as np, torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import pad
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from verify import reward

CONNECTIVES = ["So ", "Then ", "Now ", "Thus ", "Next ", "Here ", "Also ", "Hence "]
VOCABULARY = ["<pad>", "<eos>", "<unk>", *"0123456789", *"+-*", "=", "?", "\n", "answer ", "\\boxed{", "}", *CONNECTIVES]
TOKEN_ID = {token: i for i, token in enumerate(VOCABULARY)}
OPERATIONS = {"+": lambda a, b: (a + b) % 10, "-": lambda a, b: (a - b) % 10, "*": lambda a, b: (a * b) % 10}
CACHE = Path(__file__).parent / ".cache"


def chain(problem: str) -> list[int]:
    """The k correct intermediate results of a problem such as `7*6+1=?`, left to right, mod 10; the last is the answer."""
    results = [int(problem[0])]
    for operation, digit in zip(problem[1:-2:2], problem[2:-2:2]): results.append(OPERATIONS[operation](results[-1], int(digit)))
    return results[1:]


def problems(count: int, seed: int = 0, k: int = 5) -> list[dict]:
    """`count` random problems of k operations as {"problem": str, "answer": str}; the same list for the same seed."""
    rng = np.random.default_rng([seed, k])
    digits, operations = rng.integers(10, size=(count, k + 1)), rng.choice(list(OPERATIONS), size=(count, k))
    texts = [str(d[0]) + "".join(f"{op}{b}" for op, b in zip(ops, d[1:])) + "=?" for d, ops in zip(digits, operations)]
    return [{"problem": text, "answer": str(chain(text)[-1])} for text in texts]


def demonstration(problem: str, rng: np.random.Generator, noise: float = 0.0, filler: int = 1) -> str:
    """A worked response to `problem`; each result is with probability `noise` replaced by a uniform digit."""
    operations, digits = problem[1:-2:2], problem[2:-2:2]
    words = rng.integers(len(CONNECTIVES), size=(len(digits), filler))
    slips, uniform = rng.random(len(digits)) < noise, rng.integers(10, size=len(digits))
    current, lines = int(problem[0]), ""
    for i, (operation, b) in enumerate(zip(operations, digits)):
        result = int(uniform[i]) if slips[i] else OPERATIONS[operation](current, int(b))
        lines += "".join(CONNECTIVES[w] for w in words[i]) + f"{current}{operation}{b}={result}\n"
        current = result
    return lines + f"answer \\boxed{{{current}}}"


def decisive(problem: str, response_ids: torch.Tensor) -> torch.Tensor:
    """Which tokens decided the reward: every result digit of a right response, only the first wrong one of a wrong one.

    A result digit is the digit after an `=`; it is wrong where it differs from the true chain. The right results before
    the first wrong one did no harm, and those after it only carry the error on. Where every stated result is right but
    the box is not, the boxed digit is the wrong one. Input: ids [T] of one response; output: bool [T].
    """
    tokens = [VOCABULARY[i] for i in response_ids.tolist()]
    mark, truth = torch.zeros(len(tokens), dtype=torch.bool), chain(problem)
    right = reward("".join(tokens), str(truth[-1])) == 1.0
    stated = [i for i in range(1, len(tokens)) if tokens[i - 1] == "=" and tokens[i].isdigit()]
    if right:
        mark[stated] = True
        return mark
    boxed = [i for i in range(1, len(tokens)) if tokens[i - 1] == "\\boxed{" and tokens[i].isdigit()][-1:]
    expected = list(zip(stated, truth)) + [(i, truth[-1]) for i in boxed]
    mark[[i for i, value in expected if tokens[i] != str(value)][:1]] = True
    return mark


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer over VOCABULARY; decode(encode(text)) gives the text back."""
    tokenizer = Tokenizer(models.WordLevel(TOKEN_ID, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[A-Za-z]+ |\\boxed\{|\n|."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
                                   padding_side="left", clean_up_tokenization_spaces=False)


def build_model(hidden: int = 64, layers: int = 2) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3 over VOCABULARY: heads of 16, half as many KV heads, MLP three times the width."""
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=len(VOCABULARY), hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 16,
        num_key_value_heads=hidden // 32, head_dim=16, intermediate_size=3 * hidden, max_position_embeddings=512,
        tie_word_embeddings=False, pad_token_id=TOKEN_ID["<pad>"], eos_token_id=TOKEN_ID["<eos>"], bos_token_id=None))


def train_base(k: int, noise: float, filler: int, seed: int, steps: int = 400, batch: int = 64) -> Qwen3ForCausalLM:
    """Supervised training from scratch on fresh noisy demonstrations, about half a minute on two cores; leaves torch's RNG alone."""
    rng, tokenizer = np.random.default_rng([seed, 1]), build_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1, anneal_strategy="linear", cycle_momentum=False)
    for step in tqdm(range(steps), desc="building the toy base model", leave=False):
        texts = [p["problem"] for p in problems(batch, seed=int(rng.integers(2**31)), k=k)]
        prompts = tokenizer(texts).input_ids
        answers = tokenizer([demonstration(t, rng, noise, filler) + "<eos>" for t in texts]).input_ids
        ids = torch.tensor([p + a for p, a in zip(prompts, answers)])  # every row has the same length: no padding
        labels = pad(ids[:, len(prompts[0]):], (len(prompts[0]), 0), value=-100)  # only the response is learnt
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def base_folder(k: int = 5, noise: float = 0.2, filler: int = 1, seed: int = 0, cache: Path = CACHE) -> Path:
    """The Hugging Face folder of the noisy base model in `cache`, built at need: the same bytes for the same arguments."""
    code = hashlib.sha256(Path(__file__).read_bytes() + torch.__version__.encode()).hexdigest()[:8]  # other code, other model
    folder = Path(cache) / f"toy-k{k}-noise{noise}-filler{filler}-seed{seed}-{code}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as aside:  # a half-written folder never bears the final name
            for part in (train_base(k, noise, filler, seed), build_tokenizer()): part.save_pretrained(f"{aside}/model")
            if not folder.exists(): os.rename(f"{aside}/model", folder)  # else another process has made the same bytes meanwhile
    return folder


def base_model(*args, **options):
    """(model, tokenizer) of the noisy base model; arguments as base_folder."""
    folder = base_folder(*args, **options)
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)
