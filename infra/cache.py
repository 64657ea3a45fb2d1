"""The key-value cache of the responses in flight.

A prompt's cache is computed once and copied for its responses (`prefill`). Between two chunks of
sampling, finished responses are dropped (`keep`) and entering ones are added below (`merged`).
Sequences end in the same column, as `generate` requires, so padding is on the left:

    . a b c d     keep [0, 2],     a b c d     merged with     a b c d
    e f g h i     4 columns        . . j k     a new one       . . j k
    . . . j k                                                  . x y z

The last token of a sequence is not in its cache: `generate` feeds it and samples the next.
Sliding-window layers also keep all columns; transformers' mask hides the old ones.

Shapes: R responses in flight, L columns of the longest.
"""

import os

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from infra.architecture import takes
from infra.balance import deal

SPARE = 64  # minimum free columns after a layer has grown, as many as rollout.CHUNK adds
GROWTH = 4  # a layer grows by a quarter of its columns, within its limit
PREFILL_TOKENS = 2**14  # per `prefill` pass, including padding, or one longer sequence
SHARE_OF_FREE_MEMORY = 0.85  # for the counted memory; the rest is for fragmentation
DRAW_BYTES = 28  # per response and word: logits twice and the choice in float32; p, F in float64
TOP_P_DRAW_BYTES = 80  # also a sorted copy of p, and a GPU's memory for sorting (a guess)
UNKNOWN_FREE_BYTES = 4e9  # assumed free memory if the system does not report it


class GrowingLayer(DynamicLayer):
    """A cache layer with spare columns.

    DynamicLayer concatenates, which copies all keys and values for every new token. Here they are
    the first columns of key_room and value_room, and are copied only when these are full.
    """

    most_columns = 0  # limit on its growth beyond SPARE; see `let_grow`

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the new columns [R, heads, new, size]. Returns all keys and values so far."""
        old = self.get_seq_length()
        total = old + key_states.shape[2]
        if old == 0 or total > self.key_room.shape[2]:
            columns = total + SPARE
            if old:
                columns = max(columns, min(total + total // GROWTH, self.most_columns))
            # One after the other, so that only one of them exists twice at a time.
            self.keys = self.key_room = widened(key_states, columns, self.keys)
            self.values = self.value_room = widened(value_states, columns, self.values)

        self.key_room[:, :, old:total] = key_states
        self.value_room[:, :, old:total] = value_states
        self.keys = self.key_room[:, :, :total]
        self.values = self.value_room[:, :, :total]
        self.is_initialized = True
        return self.keys, self.values


def widened(states: torch.Tensor, columns: int, old: torch.Tensor | None) -> torch.Tensor:
    """A tensor like `states` [R, heads, new, size] with `columns` columns, starting with `old`'s.

    The other columns are uninitialised.
    """
    responses, heads, _, size = states.shape
    room = states.new_empty(responses, heads, columns, size)
    if old is not None:
        room[:, :, : old.shape[2]] = old
    return room


def let_grow(cache: DynamicCache, columns: int) -> None:
    """Allow the layers to grow up to `columns` columns at once, so that they are rarely copied."""
    for layer in cache.layers:
        layer.most_columns = columns


def left_padded(
    sequences: list[torch.Tensor], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) [R, L], with L >= 2. The mask is computed from lengths, not from ids."""
    two = torch.zeros(2, dtype=torch.long)  # makes L at least 2, and is then removed
    ids = pad_sequence([*sequences, two], batch_first=True, padding_side="left")[:-1]
    ids = ids.to(device)

    length = torch.tensor([len(sequence) for sequence in sequences], device=device)
    first = ids.shape[1] - length[:, None]  # [R, 1] the column in which each sequence starts
    mask = torch.arange(ids.shape[1], device=device) >= first
    return ids, mask.long()


def prefill(lm, sequences: list[torch.Tensor]) -> DynamicCache:
    """The cache of all but the last token of each sequence.

    Equal sequences are computed once; similar lengths share a pass. The G responses to a prompt get
    copies of its cache.
    """
    keys = [tuple(sequence.tolist()) for sequence in sequences]
    distinct = list(dict.fromkeys(keys))
    lengths = torch.tensor([len(key) for key in distinct])

    cache = None
    computed = []  # in the order of the cache
    for group in deal(torch.arange(len(distinct)), lengths, PREFILL_TOKENS, rank=0, world=1):
        some = [distinct[i] for i in group.tolist()]
        new = one_pass(lm, [torch.tensor(key) for key in some])
        cache = new if cache is None else merged(cache, new)
        computed += some
    place = {key: i for i, key in enumerate(computed)}
    return keep(cache, [place[key] for key in keys], cache.get_seq_length())


def one_pass(lm, sequences: list[torch.Tensor]) -> DynamicCache:
    """The cache of all but the last token of each sequence, from one forward pass."""
    ids, mask = left_padded(sequences, lm.device)
    inputs = {"input_ids": ids[:, :-1], "attention_mask": mask[:, :-1]}
    if takes(lm.base_model, "position_ids"):  # else the model derives positions from the mask
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        inputs["position_ids"] = positions[:, :-1]

    cache = DynamicCache()
    cache.layer_class_to_replicate = GrowingLayer
    lm.base_model(**inputs, past_key_values=cache, use_cache=True)
    return cache


def keep(cache: DynamicCache, index: list[int], columns: int) -> DynamicCache:
    """The last `columns` columns of the cache of responses `index`.

    Columns further left are padding in all of these responses.
    """
    for layer in cache.layers:
        # Frees the rooms, which hold the old keys and values.
        layer.keys = layer.key_room = layer.keys[index, :, -columns:]
        layer.values = layer.value_room = layer.values[index, :, -columns:]
    return cache


def merged(cache: DynamicCache, other: DynamicCache) -> DynamicCache:
    """The responses of `cache`, then those of `other`, the shorter padded on the left.

    Empties `other`.
    """
    for layer, below in zip(cache.layers, other.layers, strict=True):
        layer.keys = layer.key_room = stacked(layer.keys, below.keys)
        layer.values = layer.value_room = stacked(layer.values, below.values)
        below.keys = below.key_room = below.values = below.value_room = None
    return cache


def stacked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x [R, heads, L, size] above y, the one with fewer columns padded on the left with zeros."""
    responses, heads, columns, size = x.shape
    columns = max(columns, y.shape[2])
    both = x.new_zeros(responses + len(y), heads, columns, size)
    both[:responses, :, columns - x.shape[2] :] = x
    both[responses:, :, columns - y.shape[2] :] = y
    return both


def cache_bytes(config, itemsize: int) -> int:
    """Bytes of keys and values per token: 147,456 for Qwen3-8B in bfloat16."""
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    return 2 * config.num_hidden_layers * key_value_heads * head_size * itemsize


def working_bytes(config, itemsize: int, rows: int, longest: int, top_p: float) -> float:
    """Bytes for sampling in addition to weights and cache: one pass of `prefill`, or one draw.

    rows: maximum responses in flight. longest: maximum tokens in a prompt and its response.
    Fitted to runs on fake tensors: see benchmarks/plan.py.
    """
    mlp = mlp_width(config)
    tokens = max(PREFILL_TOKENS, longest)
    a_pass = itemsize * tokens * (3 * mlp + 4.3 * config.hidden_size)
    a_draw = (DRAW_BYTES if top_p == 1 else TOP_P_DRAW_BYTES) * rows * config.vocab_size
    return max(a_pass, a_draw)


def mlp_width(config) -> int:
    """Width of the MLP. GPT-2, OPT and BLOOM use other names or none."""
    return getattr(config, "intermediate_size", None) or 4 * config.hidden_size


def cache_room(config, itemsize: int, free: float, working: float) -> int:
    """The tokens whose keys and values fit in `free` bytes after `working` bytes are reserved.

    While a layer grows, one tensor (its keys or its values) exists twice.
    """
    bytes_a_token = cache_bytes(config, itemsize) * (1 + 1 / (2 * config.num_hidden_layers))
    return max(0, int((SHARE_OF_FREE_MEMORY * free - working) / bytes_a_token))


def free_cache_tokens(lm, rows: int, longest: int, top_p: float) -> int:
    """The tokens whose keys and values fit in the memory that is currently free.

    The arguments are those of `working_bytes`.
    """
    itemsize = lm.dtype.itemsize
    working = working_bytes(lm.config, itemsize, rows, longest, top_p)
    return cache_room(lm.config, itemsize, free_bytes(lm.device), working)


def free_bytes(device: torch.device) -> float:
    """Free memory of the GPU, or of the machine."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # torch's cached blocks count as free
        free, _ = torch.cuda.mem_get_info(device)
        return free
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return UNKNOWN_FREE_BYTES
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
