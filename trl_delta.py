"""Our token weights in TRL's GRPOTrainer: several machines, adapters, vLLM servers.

    accelerate launch trl_delta.py --method delta --proxy surprise --model_name_or_path ID \
        --dataset_name trl-lib/DeepMath-103K --reward_funcs trl_delta.right

`--help` lists the flags of the weights; all others are those of `trl grpo`. TRL takes advantages
[B, T]: with ρ A, its loss_type dapo is Eq. 8. docs/trl.md says what differs and what was tested.
"""

from dataclasses import replace
from functools import partial

import torch
import trl
from trl.scripts import grpo
from trl.trainer import GRPOTrainer

from batch import TokenBatch
from config import CLIP, METHODS, Config, check_flags, selected_method, weight_flags
from infra.errors import UserError, one_line_endings
from infra.flags import Parser, refuse_useless
from infra.rows import Rows
from infra.trl_pass import add_head, on_all_ranks, token_outputs
from methods import DAPO_CLIP, clipped, token_weights
from policy import Policy, TokenOutputs
from verify import reward


class WeightedTrainer(GRPOTrainer):
    """TRL's trainer with the advantages ρ A: [B, T] on a rank with B responses."""

    def __init__(self, *arguments, weights: Config, **named):
        self.method = selected_method(weights)
        if self.method.surrogate is not clipped:
            raise UserError(f"--method {weights.method} needs a loss of its own: use train.py")
        if weights.delta_variant == "fixed_gamma":
            raise UserError("--delta-variant fixed_gamma needs a checkpoint's memory: use train.py")
        super().__init__(*arguments, **named)
        self.weights = replace(weights, group_size=self.num_generations)
        add_head(self)

    def _generate_and_score_completions(self, examples):
        batch = super()._generate_and_score_completions(examples)
        if not self.model.training:
            return batch  # an evaluation, without an update
        mask = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()  # [B, T]
        outputs = TokenOutputs(**token_outputs(self, batch, mask))  # n tokens, by one more pass
        index, fields = on_all_ranks(self, batch, mask, outputs)  # [n], and N tokens of all ranks
        features = None
        if self.method.features:
            head = Policy(self.model, self.temperature).head
            features = Rows(len(fields["token"]))
            features.add(index, self.method.features(outputs, head))
        seed = self.args.seed + self.state.global_step
        tokens = TokenBatch(**fields, problems=[], seed=seed, features=features)
        rho = torch.zeros(mask.shape, device=mask.device)
        rho[mask] = token_weights(self.method, tokens, self.weights)[index]
        batch["advantages"] = rho * batch["advantages"][:, None]
        return batch


def right(completions, solution, **_):
    """R by verify.py, against the data set's column `solution`."""
    texts = [x if isinstance(x, str) else x[-1]["content"] for x in completions]
    return [reward(text, gold) for text, gold in zip(texts, solution, strict=True)]


def main(argv: list[str] | None = None) -> None:
    """TRL's own script, with the trainer above."""
    flags = Parser(Config, "trl_delta.py", __doc__, names=weight_flags())
    given, rest = flags.parse_known_args(argv)
    weights = Config(**vars(given))
    check_flags(weights, vars(given))
    refuse_useless(
        weights, {("method", weights.method): CLIP}, vars(given)
    )  # --epsilon, --epsilon_high
    low, high = METHODS[weights.method].default_clip or DAPO_CLIP
    parser = grpo.make_parser()
    parser.set_defaults(epsilon=low, epsilon_high=high, delta=10.0)  # 10: grpo.py's dual clip
    trl.GRPOTrainer = partial(WeightedTrainer, weights=weights)
    grpo.main(*parser.parse_args_and_config(rest))


if __name__ == "__main__":
    with one_line_endings("trl_delta.py"):
        main()
