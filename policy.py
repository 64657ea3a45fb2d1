"""The model as RL sees it: packed rows, one per response token, and nothing else.

`Policy` wraps any causal language model. Its forward takes whole sequences and returns, for each response token, its
log-probability, the entropy of the distribution it was drawn from and the hidden state that entered the LM head. No other
file of the project touches a mask, a padded position or a part of the wrapped model.

Departures: none; App. L.1 notes that keeping the hidden states of the scoring pass spares DelTA every further pass, and
`score` keeps them.
Shapes: B responses, T tokens of the longest sequence, N packed response tokens, H hidden, V vocabulary.
"""
import os
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from data import UserError
from grpo import TokenBatch
from rollout import Rollouts


@dataclass
class TokenRows:
    """Packed rows: the tokens of response 0, then those of response 1, ...; inside a response in reading order."""
    logprob: torch.Tensor  # [N] float32, log π_θ(o_t | q, o_<t) at the sampling temperature, nats
    entropy: torch.Tensor  # [N] float32, entropy of π_θ(. | q, o_<t) at the sampling temperature, nats; no gradient
    hidden: torch.Tensor   # [N, H] the hidden state h that enters the LM head; no gradient


class Policy(nn.Module):
    """A causal language model `lm` with the temperature that serves both sampling and log-probabilities."""

    def __init__(self, lm: nn.Module, temperature: float = 1.0):
        super().__init__()
        self.lm, self.temperature = lm, temperature

    def forward(self, ids: torch.Tensor, prompt_length: torch.Tensor, response_length: torch.Tensor) -> TokenRows:
        """Packed rows of the response tokens.

        ids [B, T]: prompt, then response, then anything up to T. Sequences start at column 0, so causal attention alone
        keeps the padding on the right out of every real token and no mask is needed. Lengths [B] count tokens.
        """
        columns = torch.arange(ids.shape[1], device=ids.device)
        end = prompt_length + response_length
        response = (columns >= prompt_length[:, None]) & (columns < end[:, None])  # [B, T] true on response tokens
        states = self.lm.base_model(input_ids=ids, use_cache=False).last_hidden_state  # [B, T, H]
        hidden = states[:, :-1][response[:, 1:]]  # [N, H] the state at t-1 predicts the token at t
        head = self.lm.get_output_embeddings().weight
        logits = hidden.float() @ head.float().T / self.temperature  # [N, V] float32: bf16 logits cost 0.06 nats
        logprobs = logits.log_softmax(dim=-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).nan_to_num().sum(dim=-1)  # 0 log 0 = 0
        logprob = logprobs.gather(1, ids[response][:, None]).squeeze(1)
        return TokenRows(logprob, entropy, hidden.detach())


    def rows(self, rollouts: Rollouts, index: torch.Tensor) -> TokenRows:
        """Forward for responses `index` of a rollout batch, cut to the longest of them."""
        prompt, response = rollouts.prompt_length[index], rollouts.response_length[index]
        return self(rollouts.ids[index, :int((prompt + response).max())], prompt, response)


def packed_rows(index: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Where the tokens of responses `index` stand among all packed rows, in that order; `length` [B] response tokens."""
    start = length.cumsum(0) - length
    return torch.cat([torch.arange(int(start[i]), int(start[i] + length[i]), device=length.device) for i in index])


def micro_batches(length: torch.Tensor, budget: int) -> list[torch.Tensor]:
    """Split B rows into groups that hold at most `budget` tokens after padding (a longer row stands alone).

    Rows are sorted by length, so little is padded. `length` [B]: tokens of prompt and response. Returns index tensors.
    """
    groups, current = [], []
    for i in length.argsort(descending=True, stable=True).tolist():
        if current and int(length[current[0]]) * (len(current) + 1) > budget:  # the first row of a group is its longest
            groups.append(torch.tensor(current, device=length.device))
            current = []
        current.append(i)
    return groups + ([torch.tensor(current, device=length.device)] if current else [])


def plan_micro_batches(rollouts: Rollouts, advantages: torch.Tensor, mini_batch: int, budget: int) -> list[list]:
    """For each mini-batch of `mini_batch` responses its micro-batches, as (response indices, whether these have an advantage).

    Scoring and update go through the same micro-batches, so the ratio of a step's first update is 1 to the last bit; those of
    zero-advantage responses are scored (their entropies count) but need no backward pass.
    """
    length, plan = rollouts.prompt_length + rollouts.response_length, []
    for part in torch.arange(len(advantages), device=advantages.device).split(mini_batch):
        sides = advantages[part] != 0
        plan.append([(part[some][group], has_advantage) for some, has_advantage in ((sides, True), (~sides, False))
                     for group in micro_batches(length[part[some]], budget)])
    return plan


@torch.no_grad()
def score(policy: Policy, rollouts: Rollouts, advantages: torch.Tensor, plan: list[list]) -> TokenBatch:
    """One forward pass over all responses: old log-probabilities, entropies and the hidden states DelTA uses, packed."""
    length, tokens = rollouts.response_length, None
    for index, _ in (group for mini_batch in plan for group in mini_batch):
        rows, out = packed_rows(index, length), policy.rows(rollouts, index)
        if tokens is None:
            empty = [x.new_empty(int(length.sum()), *x.shape[1:]) for x in (out.logprob, out.entropy, out.hidden)]
            ids = torch.cat([rollouts.response_ids(i) for i in range(len(length))])
            head = policy.lm.get_output_embeddings().weight.detach()
            tokens = TokenBatch(advantages.repeat_interleave(length), *empty, length, ids,
                                head if policy.temperature == 1 else head / policy.temperature)
        tokens.logprob[rows], tokens.entropy[rows], tokens.hidden[rows] = out.logprob, out.entropy, out.hidden
    tokens.current = tokens.logprob  # θ is θ_old
    return tokens


def load_model(name: str, dtype: torch.dtype = torch.float32) -> tuple:
    """(model, tokenizer) of a Hugging Face folder or hub id, on the GPU if there is one. Raises UserError where there is none."""
    try:
        model, tokenizer = AutoModelForCausalLM.from_pretrained(name, dtype=dtype), AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(f"--model {name}: no model there ({str(error).splitlines()[0]}); pass a Hugging Face folder or hub id") from error
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval(), tokenizer  # eval: with dropout the ratio would not be 1
