"""A step of 8B to 70B on 8 to 512 GPUs of 80 GB, on paper (`plan`): memory, bytes sent, seconds.

Counted from the shapes of the models, for the paper's settings (App. I) with every response of the
mean length L after a prompt of PROMPT tokens; nothing is measured. A stage takes as long as the
slowest of what it computes, reads and sends, each at a share of the GPU's peak that is assumed:
see `Machine`.

    sampling    a token of the R responses in flight reads all weights (2 P bytes) and their caches,
                takes 2 P R FLOP, and waits for the launches of `generate`; and no step is done
                before its longest response, of --max-new-tokens
    log-probs   2 P FLOP a token and attention; the weights gathered once a micro-batch
    update      8 P FLOP a token (recomputation included) and attention; the weights gathered twice
                a micro-batch, gradients in float32 scattered once; over the nodes they are summed
                once an update
    DelTA       2 K + 3 passes over v, [N, H] in bfloat16, on the GPU or over PCIe

Shapes: P parameters, P' of them multiply, N response tokens, H hidden size, W GPUs.
"""

import math
from dataclasses import dataclass

from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

import train
from infra import memory
from infra.memory import GB, NODE, Plan, Sizes, qwen3, sizes_of
from studies.tables import table_line

GPUS = (8, 32, 128, 512)
LENGTHS = (1024, 4096, 16384)  # mean tokens of a response
PROMPT = 256  # tokens
GPU_GB = 80
PASSES = 5  # of DelTA at K = 1 over v


@dataclass(frozen=True)
class Machine:
    """A GPU and its links: peak of an H100 with NVLink and 400 Gb/s a GPU, and what is reached."""

    flop: float = 0.4 * 989e12  # dense bfloat16 FLOP a second
    memory: float = 0.6 * 3.35e12  # bytes a second of the GPU's memory
    nvlink: float = 0.7 * 450e9  # bytes a second that a GPU receives inside a node
    network: float = 0.7 * 50e9  # the same between nodes
    pcie: float = 0.5 * 64e9  # from host memory
    launches: float = 0.4e-3  # seconds a layer and token in which `generate` launches kernels


H100 = Machine()


def qwen3_32b() -> Qwen3Config:
    """The architecture of Qwen/Qwen3-32B."""
    config = qwen3("14B").to_dict()
    config |= {
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "layer_types": None,
    }
    return Qwen3Config(**config)


def llama_70b() -> LlamaConfig:
    """The architecture of Llama-3.1-70B."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=False,
        max_position_embeddings=131072,
    )


MODELS = {
    "Qwen3-8B": qwen3("8B"),
    "Qwen3-14B": qwen3("14B"),
    "Qwen3-32B": qwen3_32b(),
    "Llama-70B": llama_70b(),
}

HEADER = """\
| model | GPUs | rollout, log-probs, update: GB a GPU | fits | received a GPU and step: NVLink, \
network, GB | sampling, s | log-probs, s | update, s | DelTA, s | sampling's share |
|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Work:
    """A step of a model on W GPUs at a mean length of responses."""

    size: Sizes
    memory: Plan
    gpus: int
    length: int  # L
    responses: int  # of the step, on all GPUs
    updates: int
    micro_batch_tokens: int
    longest: int  # tokens of the longest response
    most_in_flight: int  # responses, by --rollout-rows
    machine: Machine = H100

    @property
    def tokens(self) -> float:
        """Of prompts and responses, on one GPU."""
        return self.responses * (PROMPT + self.length) / self.gpus

    @property
    def micro_batches(self) -> int:
        """Of one GPU, in all updates."""
        each = self.tokens / self.updates / self.micro_batch_tokens
        return self.updates * math.ceil(each)

    @property
    def multiplying(self) -> int:
        """P': all but the embedding, which is looked up (none of MODELS ties it to the head)."""
        return self.size.parameters - self.size.vocabulary * self.size.hidden

    def forward_flop(self) -> float:
        """Of all tokens on one GPU: 2 P' each, and attention over half of the sequence."""
        attention = 2 * self.size.layers * self.size.attention * (PROMPT + self.length)
        return (2 * self.multiplying + attention) * self.tokens

    # ---- bytes that a GPU receives ---------------------------------------------------------------

    def gathered(self) -> float:
        """All weights in bfloat16, but for its own shard."""
        shards = min(self.gpus, NODE)
        return 2 * self.size.parameters * (shards - 1) / shards

    def nvlink_bytes(self) -> dict[str, float]:
        """Weights, and in an update the gradients in float32, by stage."""
        return {
            "sampling": self.gathered(),
            "log-probs": self.micro_batches * self.gathered(),
            "update": self.micro_batches * (2 * self.gathered() + 2 * self.gathered()),
        }

    def network_bytes(self) -> float:
        """Shards of the gradients in float32, summed over the nodes once an update."""
        nodes = math.ceil(self.gpus / NODE)
        shard = 4 * self.size.parameters / min(self.gpus, NODE)
        return self.updates * 2 * shard * (nodes - 1) / nodes

    # ---- seconds ---------------------------------------------------------------------------------

    def in_flight(self) -> int:
        """Responses that a GPU samples at a time; 0 where not even one fits."""
        if self.memory.in_flight == 0:
            return 0
        room = self.memory.cache / self.memory.cache_per_token / (PROMPT + self.length)
        mine = math.ceil(self.responses / self.gpus)
        return max(1, min(int(room), mine, self.most_in_flight))

    def token_seconds(self, rows: int, columns: float) -> float:
        """A new token of each of `rows` responses with so many columns in their caches."""
        reads = 2 * self.multiplying + rows * columns * self.memory.cache_per_token
        flop = 2 * self.multiplying * rows
        return max(
            reads / self.machine.memory,
            flop / self.machine.flop,
            self.size.layers * self.machine.launches,
        )

    def sampling(self) -> float:
        """Seconds; inf where no response fits."""
        rows = self.in_flight()
        if rows == 0:
            return math.inf
        rounds = self.responses / self.gpus / rows
        all_of_them = max(1, rounds) * self.length * self.token_seconds(rows, self.length / 2)
        longest = self.longest * self.token_seconds(1, self.longest / 2)
        return max(all_of_them, longest) + self.gathered() / self.machine.nvlink

    def log_probs(self) -> float:
        sent = self.nvlink_bytes()["log-probs"] / self.machine.nvlink
        return max(self.forward_flop() / self.machine.flop, sent)

    def update(self) -> float:
        sent = self.nvlink_bytes()["update"] / self.machine.nvlink
        computed = 4 * self.forward_flop() / self.machine.flop  # forward, again, backward twice it
        return max(computed, sent) + self.network_bytes() / self.machine.network

    def coefficients(self) -> float:
        """DelTA's passes over this GPU's v; a block is read, written in float32 and read again."""
        numbers = self.responses * self.length / self.gpus * self.size.hidden
        if self.memory.hidden_on_host:
            return PASSES * 2 * numbers / self.machine.pcie
        return PASSES * 10 * numbers / self.machine.memory

    def seconds(self) -> tuple[float, float, float, float]:
        """Of sampling, log-probabilities, update and DelTA."""
        return self.sampling(), self.log_probs(), self.update(), self.coefficients()


def works_of(config: PreTrainedConfig, gpus: int) -> list[Work]:
    """The paper's step on `gpus` GPUs, at each of LENGTHS."""
    flags = train.parse_config(["--model", "Qwen/Qwen3"])
    responses = flags.prompts * flags.group_size
    planned = memory.plan(
        config,
        gpus,
        GPU_GB,
        flags.micro_batch_tokens,
        flags.max_prompt_tokens,
        flags.max_new_tokens,
        responses,
        flags.rollout_rows,
        flags.proxy_budget_gb,
    )
    size = sizes_of(config)
    works = []
    for length in LENGTHS:
        work = Work(
            size=size,
            memory=planned,
            gpus=gpus,
            length=length,
            responses=responses,
            updates=flags.prompts // flags.mini_batch,
            micro_batch_tokens=flags.micro_batch_tokens,
            longest=flags.max_new_tokens,
            most_in_flight=flags.rollout_rows,
        )
        works.append(work)
    return works


def figure(x: float) -> str:
    """Three digits, `-` for what cannot be."""
    if math.isinf(x):
        return "-"
    return f"{x:.3g}" if x < 1000 else f"{x:.0f}"


def table_row(name: str, works: list[Work]) -> str:
    """A line for a model on some GPUs; several lengths stand in one cell."""
    planned = works[0].memory
    phases = (planned.rollout, planned.old_logprobs, planned.update)
    nvlink = " / ".join(figure(sum(work.nvlink_bytes().values()) / GB) for work in works)
    stages = zip(*(work.seconds() for work in works), strict=True)
    shares = []
    for work in works:
        total = sum(work.seconds())
        shares.append("-" if math.isinf(total) else f"{work.sampling() / total:.0%}")
    cells = [
        name,
        works[0].gpus,
        ", ".join(f"{phase / GB:.0f}" for phase in phases),
        "yes" if planned.fits(GPU_GB) else "no",
        f"{nvlink}, {figure(works[0].network_bytes() / GB)}",
        *(" / ".join(figure(x) for x in of_lengths) for of_lengths in stages),
        " / ".join(shares),
    ]
    return table_line(cells)


def plan(args) -> list[dict]:
    """Print the table; `args` are bench.py's, of which it needs none."""
    print(f"mean tokens of a response: {' / '.join(str(length) for length in LENGTHS)}\n")
    print(HEADER)
    rows = []
    for name, config in MODELS.items():
        for gpus in GPUS:
            works = works_of(config, gpus)
            print(table_row(name, works), flush=True)
            for work in works:
                rows.append(
                    {
                        "model": name,
                        "gpus": gpus,
                        "length": work.length,
                        "fits": work.memory.fits(GPU_GB),
                        "in_flight": work.in_flight(),
                        "nvlink_bytes": work.nvlink_bytes(),
                        "network_bytes": work.network_bytes(),
                        "seconds": work.seconds(),
                    }
                )
    return rows
