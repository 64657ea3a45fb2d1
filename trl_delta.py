"""Our token weights in TRL's GRPOTrainer: several machines, adapters, vLLM servers.

    accelerate launch trl_delta.py --method delta --proxy scalar --model_name_or_path ID \
        --dataset_name trl-lib/DeepMath-103K --reward_funcs trl_delta.right

`--help` lists the flags of the token weights; all other flags are those of `trl grpo`. TRL takes
advantages [B, T]: with ρ A, its loss_type dapo is Eq. 8. docs/trl.md lists what differs and what
was tested.

The weights need one more pass over each generation batch. It is TRL's own forward pass (trl 1.16),
so it works with whatever TRL trains: replicas, shards, adapters. Hooks keep what TRL drops:
the states that enter the head, and Σ_y p(y)².

Shapes: B responses of this rank, T tokens in the longest of them, n tokens of this rank, N tokens
of all ranks, H hidden size.
"""

import dataclasses
from functools import partial

import torch

from config import METHODS, Config, check_flags, selected_method
from infra.data_sets import cell_text
from infra.dropped import NEVER, is_matchable, refuse_most, report
from infra.errors import UserError, first_line, one_line_endings
from infra.flags import Parser, flags_of_methods
from infra.head import scaled_head
from infra.model_files import refuse_unsavable
from infra.problems import short_answer
from infra.ranks import sum_over_ranks
from infra.rows import Rows
from infra.tokens import end_tokens, text_decoder
from methods import DAPO_CLIP, TokenBatch, TokenOutputs, dapo_surrogate
from verify import reward

with one_line_endings("trl_delta.py"):
    try:
        import trl
        from datasets import Dataset
        from trl.scripts import grpo
        from trl.trainer import GRPOTrainer
        from trl.trainer.utils import add_fused_lm_head
    except ImportError as error:
        raise UserError(f"TRL 1.16 is needed, as docs/trl.md says ({first_line(error)})") from error

OURS = [("trl_delta", "right"), ("__main__", "right")]  # our reward function
OUTPUTS = ("log_probs", "entropy")  # what the head of TRL's pass returns


class WeightedTrainer(GRPOTrainer):
    """TRL's trainer with the advantages ρ A: [B, T] on a rank with B responses."""

    def __init__(self, *arguments, cfg: Config, **named):
        self.method = selected_method(cfg)
        if self.method.surrogate is not dapo_surrogate:
            raise UserError(f"--method {cfg.method} needs a loss of its own: use train.py")
        if cfg.delta_variant == "fixed_gamma":
            raise UserError("--delta-variant fixed_gamma needs a checkpoint's memory: use train.py")
        if cfg.method == "dr_grpo":
            raise UserError("--method dr_grpo needs rewards: use TRL's --scale_rewards none")
        args = named.get("args")
        if args and args.importance_sampling_level != "token":
            raise UserError(
                f"--importance_sampling_level {args.importance_sampling_level} has one ratio for "
                "all tokens of a response, so their weights would do nothing: leave it out"
            )
        rewards = named.get("reward_funcs")
        for each in rewards if isinstance(rewards, list) else [rewards]:
            if (getattr(each, "__module__", ""), getattr(each, "__name__", "")) in OURS:
                refuse_golds(named.get("train_dataset"))
        super().__init__(*arguments, **named)
        self.cfg = dataclasses.replace(cfg, group_size=self.num_generations)
        add_head(self)
        end_like_train(self)
        if not hasattr(self.model, "get_base_model"):  # adapters are saved without the configs
            refuse_unsavable(self.model.name_or_path, self.model, self._tokenizer)

    def _generate_and_score_completions(self, examples):
        """TRL's batch, with ρ A [B, T] for A [B] under "advantages".

        Its keys here: prompt_ids, prompt_mask [B, P]; completion_ids, completion_mask [B, T], and
        with tools tool_mask [B, T]; with images pixel_values.
        """
        batch = super()._generate_and_score_completions(examples)
        if not self.model.training:
            return batch  # an evaluation, without an update
        if "pixel_values" in batch:
            raise UserError("--dataset_name has images: the weights are computed from text alone")
        mask = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()  # [B, T]
        outputs = TokenOutputs(**token_outputs(self, batch, mask))  # n tokens, by one more pass
        index, tokens = on_all_ranks(self, batch, mask, outputs)  # [n], and N tokens of all ranks
        v = None
        if self.method.features:
            head = partial(scaled_head, self.model, self.temperature)
            v = Rows(len(tokens))
            v.add(index, self.method.kept_features(outputs, head))
        weighted = torch.zeros(mask.shape, device=mask.device)
        rho = self.method.checked_weights(tokens, v, self.cfg)
        weighted[mask] = (rho * tokens.advantage)[index]
        batch["advantages"] = weighted
        return batch


def end_like_train(trainer) -> None:
    """Give TRL's sampler and model our end tokens, and its rewards our texts. Call this once."""
    tokenizer = trainer._tokenizer
    ends = end_tokens(trainer.model, tokenizer)
    trainer.eos_token_ids = ends
    trainer.model.generation_config.eos_token_id = ends  # also where the saved model is used
    if trainer.use_vllm:
        trainer.vllm_generation.generation_kwargs["stop_token_ids"] = ends
    else:
        trainer.generation_config.eos_token_id = ends
        trainer.generation_kwargs["eos_token_id"] = ends

    text = text_decoder(tokenizer)

    def batch_decode(responses, **_) -> list[str]:
        return [text([], response) for response in responses]

    trainer.processing_class.batch_decode = batch_decode  # TRL's own drops special tags of thought


# ---- one more pass of TRL's model ----------------------------------------------------------------


def add_head(trainer) -> None:
    """Make the head of TRL's pass return OUTPUTS. Call this once, before training."""
    lm = trainer.model
    lm = lm.get_base_model() if hasattr(lm, "get_base_model") else lm  # without adapters
    add_fused_lm_head(lm, trainer.temperature, trainer.args.cast_lm_head_to_fp32, OUTPUTS)


@torch.no_grad()
def token_outputs(trainer, batch: dict, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """The fields of methods.TokenOutputs for the n tokens that mask [B, T] selects.

    batch: as TRL's _generate_and_score_completions returns it. All ranks call this.
    """
    T, size = mask.shape[1], trainer.args.per_device_train_batch_size
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    bodies, heads = [], []  # outputs of the body and of the whole model, for each micro-batch

    def keep_body(module, arguments, output):
        bodies.append(output)

    def keep_head(module, arguments, output):
        heads.append(output)

    hooks = [
        trainer.model.get_decoder().register_forward_hook(keep_body),
        trainer.model.register_forward_hook(keep_head),
    ]
    trainer._get_per_token_logps_and_entropies(trainer.model, ids, seen, T, size)
    for hook in hooks:
        hook.remove()

    # The state before a token predicts it. The head's outputs are shifted already.
    hidden = torch.cat([body.last_hidden_state[:, -T - 1 : -1] for body in bodies])
    of_head = {name: torch.cat([head[name][:, -T:] for head in heads])[mask] for name in OUTPUTS}
    return {
        "logprob": of_head["log_probs"].float(),
        "entropy": of_head["entropy"].float(),
        "hidden": hidden[mask],
        "token": batch["completion_ids"][mask],
    }


def on_all_ranks(trainer, batch: dict, mask: torch.Tensor, outputs: TokenOutputs) -> tuple:
    """(indices of this rank's tokens [n] among the N, the TokenBatch of all ranks).

    Ranks hold equally many responses; a lower rank's come first. All ranks call this.
    """
    gather = trainer.accelerator.gather
    length = gather(mask.sum(dim=1))
    first = trainer.accelerator.process_index * len(mask)  # this rank's first response
    index = length[:first].sum() + torch.arange(len(outputs.token), device=mask.device)
    advantage = without_rounding(gather(batch["advantages"]), trainer.num_generations)

    def everyone(mine: torch.Tensor) -> torch.Tensor:
        whole = mine.new_zeros(int(length.sum()))
        whole[index] = mine
        return sum_over_ranks(whole)  # other ranks' tokens are 0

    old_logprob = everyone(outputs.logprob)
    tokens = TokenBatch(
        token=everyone(outputs.token),
        length=length,
        reward=torch.full_like(advantage, torch.nan),  # TRL does not return the rewards
        advantage=advantage.repeat_interleave(length),
        sampler_logprob=old_logprob,  # a stand-in: no method reads it
        old_logprob=old_logprob,
        entropy=everyone(outputs.entropy),
        seed=trainer.args.seed + trainer.state.global_step,  # each step has its own random weights
    )
    return index, tokens


def without_rounding(advantages: torch.Tensor, group_size: int) -> torch.Tensor:
    """A [B], exactly 0 in a group of equal rewards. There TRL leaves -7e-5 for rewards of 0.1.

    A group's advantages sum to 0, so if none is positive, or none negative, they are rounding.
    """
    groups = advantages.view(-1, group_size)
    has_sides = (groups > 0).any(dim=1, keepdim=True) & (groups < 0).any(dim=1, keepdim=True)
    return (groups * has_sides).view(-1)


# ---- the program ---------------------------------------------------------------------------------


def right(completions, solution=None, answer=None, **_):
    """R by verify.py, against the data set's column `solution`, else `answer`."""
    columns = [column or [None] * len(completions) for column in (solution, answer)]
    golds = [gold_of(*cells) for cells in zip(*columns, strict=True)]
    return [reward(text_of(x), gold) for x, gold in zip(completions, golds, strict=True)]


def gold_of(solution=None, answer=None) -> str:
    """The gold answer in a record's cells: in `solution`, or if that is empty, in `answer`."""
    return short_answer(cell_text(solution, "solution") or cell_text(answer, "answer"))


def text_of(completion: str | list[dict]) -> str:
    """A completion's text; of a chat, the last message's, which may be None or a list of parts."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") or ""
    return content if isinstance(content, str) else "".join(x.get("text", "") for x in content)


def refuse_golds(data) -> None:
    """Raise UserError if no response can match most of a data set's gold answers for `right`."""
    if not isinstance(data, Dataset):
        return  # a stream, which is read only once
    if not {"solution", "answer"} & {*data.column_names}:
        names = ", ".join(data.column_names)
        raise UserError(f"--dataset_name has no column solution or answer, only {names}")
    never = []
    golds = data.select_columns([x for x in ("solution", "answer") if x in data.column_names])
    for number, record in enumerate(golds, start=1):
        try:
            text = gold_of(**record)
        except ValueError as error:
            raise UserError(f"--dataset_name, record {number}, {error}") from error
        if not is_matchable(text):
            never.append((number, {"answer": text}))
    refuse_most(never, len(data), "--dataset_name")
    report("--dataset_name: all records are kept", {NEVER: never} if never else {})


def main(argv: list[str] | None = None) -> None:
    """TRL's own script, with the trainer above."""
    names = ["method", *flags_of_methods(Config)]
    flags = Parser(Config, "trl_delta.py", __doc__, names=names)
    given, rest = flags.parse_known_args(argv)
    cfg = Config(**vars(given))
    check_flags(cfg, vars(given))
    low, high = METHODS[cfg.method].clip_range or DAPO_CLIP
    parser = grpo.make_parser()
    parser.set_defaults(epsilon=low, epsilon_high=high, delta=10.0)  # 10: grpo.py's dual clip
    # TRL's script looks the name up when it runs, so it gets the trainer above.
    trl.GRPOTrainer = partial(WeightedTrainer, cfg=cfg)
    grpo.main(*parser.parse_args_and_config(rest))


if __name__ == "__main__":
    with one_line_endings("trl_delta.py"):
        main()
