"""The DelTA of docs/trl.md in TRL's GRPOTrainer, run as printed, compared with ours (`trl_delta`).

Four steps on one batch of the toy, four on the next. A range of [1, 1] must be TRL's own run, bit
for bit. With the paper's range, what the trainer's mini-batches carry must be delta_coefficients of
plain forward passes, one response at a time, of all ranks' tokens in one tensor; and TRL's loss
must be Eq. 8. Under torchrun rank 0 prints. TRL is installed beside requirements.txt in an
environment of its own: pip install trl==1.16.0
"""

import importlib.util
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist

import toy
from delta import delta_coefficients, token_gradient_proxy
from grading import grade
from grpo import clipped_surrogate
from infra.errors import UserError
from infra.ranks import end_ranks, rank_and_world
from studies.tables import table_line

PAGE = Path(__file__).parent.parent / "docs/trl.md"

RESPONSES = 16  # of a micro-batch and rank
SPLIT = 4  # micro-batches of a generation batch
ACCUMULATED = 2  # of them make an update
STEPS = 8  # two generation batches: each is passed through twice, in two updates a pass
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
NOT_COMPARED = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "step_time"}


def documented_trainer(**flags) -> type:
    """The class in docs/trl.md; flags go to its delta_coefficients."""
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    namespace = {}
    exec(compile(code, str(PAGE), "exec"), namespace)
    namespace["delta_coefficients"] = partial(delta_coefficients, **flags)
    return namespace["DeltaTrainer"]


# ---- a run ---------------------------------------------------------------------------------------


def trained(trainer_class: type, folder: str):
    """The trainer after STEPS steps, the same work for every class."""
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig

    def reward(completions, answer, **_):
        pairs = zip(completions, answer, strict=True)
        return [grade(text, {"answer": gold}) for text, gold in pairs]

    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=RESPONSES,
        gradient_accumulation_steps=ACCUMULATED,
        steps_per_generation=SPLIT,
        num_iterations=2,
        num_generations=8,
        max_completion_length=60,
        max_steps=STEPS,
        learning_rate=3e-3,  # so that ratios leave the clip's range
        epsilon=CLIP_LOW,
        epsilon_high=CLIP_HIGH,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    problems = toy.problems(32, k=5) + toy.problems(32, k=3)  # prompts of two lengths
    lm, tokenizer = toy.base_model()
    trainer = trainer_class(
        lm,
        reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": p["problem"], **p} for p in problems]),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)  # the log is in trainer.state, too
    trainer.train()
    return trainer


def metrics(trainer) -> list[dict]:
    """What the trainer logged, without times."""
    return [
        {name: value for name, value in row.items() if name not in NOT_COMPARED}
        for row in trainer.state.log_history
    ]


def differences(trainer, other) -> int:
    """How many metrics and parameters of two runs are not the same to the last bit."""
    count = 0
    for row, other_row in zip(metrics(trainer), metrics(other), strict=True):
        count += sum(row[name] != other_row[name] for name in row.keys() | other_row.keys())
    parameters = zip(trainer.model.parameters(), other.model.parameters(), strict=True)
    return count + sum(not torch.equal(p, q) for p, q in parameters)


# ---- the same numbers by plain forward passes ----------------------------------------------------


def responses(batch: dict) -> list[tuple[list[int], list[int]]]:
    """(prompt, completion) of each response of a batch, without padding."""
    pairs = []
    for side in ("prompt", "completion"):
        ids, mask = batch[f"{side}_ids"], batch[f"{side}_mask"].bool()
        pairs.append([row[keep].tolist() for row, keep in zip(ids, mask, strict=True)])
    return list(zip(*pairs, strict=True))


@torch.no_grad()
def plain_forward(lm, prompt: list[int], completion: list[int]) -> tuple[torch.Tensor, ...]:
    """(what enters the head, log p) of each token of a completion: [T, H], [T]."""
    out = lm(torch.tensor([prompt + completion]), output_hidden_states=True)
    hidden = out.hidden_states[-1][0, len(prompt) - 1 : -1]
    logits = out.logits[0, len(prompt) - 1 : -1]
    picked = torch.tensor(completion)[:, None]
    return hidden, logits.log_softmax(dim=1).gather(1, picked).squeeze(1)


def checked(trainer_class: type, seen: dict) -> type:
    """The trainer, which holds its mini-batches and losses against plain forward passes.

    seen: takes all λ̄ of the run (`weights`), and the largest differences on this rank in λ̄ A
        (`advantage`) and in the loss (`loss`); `responses` counts what the mini-batches brought.
    """

    class Checked(trainer_class):
        def _generate_and_score_completions(self, examples):
            batch = super()._generate_and_score_completions(examples)
            pairs = responses(batch)
            plain = [plain_forward(self.model, *pair) for pair in pairs]
            everybody = from_all_ranks([(p.numpy(), h.numpy()) for h, p in plain])
            logprob = [torch.from_numpy(p) for p, _ in everybody]
            hidden = [torch.from_numpy(h) for _, h in everybody]

            length = torch.tensor([len(p) for p in logprob])
            advantage = torch.tensor(list(self._logs["advantages"])[-len(everybody) :])
            advantage = advantage.repeat_interleave(length)  # [N]
            v = token_gradient_proxy(torch.cat(hidden), torch.cat(logprob))  # [N, H]
            weights = delta_coefficients(v, advantage)
            seen["weights"].append(weights)

            rank = rank_and_world()[0]
            mine = slice(rank * len(pairs), (rank + 1) * len(pairs))
            self.count = len(v)
            self.expected = {}  # response -> log p at θ_old, λ̄ A
            weighted = (weights * advantage).split(length.tolist())[mine]
            for pair, (_, old), scaled in zip(pairs, plain, weighted, strict=True):
                self.expected[str(pair)] = old, scaled
            return batch

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            objective = 0.0
            for row, pair in enumerate(responses(inputs)):
                old, scaled = self.expected[str(pair)]
                off = (inputs["advantages"][row, : len(scaled)] - scaled).abs().max()
                seen["advantage"] = max(seen["advantage"], off.item())
                _, logprob = plain_forward(self.model, *pair)
                surrogate = clipped_surrogate(logprob, old, scaled, CLIP_LOW, CLIP_HIGH, None)
                objective += surrogate.sum().item()
                seen["responses"] += 1
            # N of a mini-batch is the mean one of all ranks: DDP then averages over these.
            N = self.count / rank_and_world()[1] / SPLIT * ACCUMULATED
            seen["loss"] = max(seen["loss"], abs(loss.item() + objective / N))
            return loss

    return Checked


def from_all_ranks(mine: list) -> list:
    """The lists of all ranks, joined in their order."""
    world = rank_and_world()[1]
    if world == 1:
        return mine
    parts = [None] * world
    dist.all_gather_object(parts, mine)
    return [item for part in parts for item in part]


# ---- the bench -----------------------------------------------------------------------------------


def trl_delta(args) -> dict:
    """DelTA of docs/trl.md in that trainer against ours, to the last digits (same environment)."""
    if importlib.util.find_spec("trl") is None:
        raise UserError("no TRL here: pip install trl==1.16.0, in an environment of its own")
    from trl import GRPOTrainer

    seen = {"weights": [], "advantage": 0.0, "loss": 0.0, "responses": 0}
    with tempfile.TemporaryDirectory() as folder:
        theirs = trained(GRPOTrainer, folder)
        ones = trained(documented_trainer(lam_min=1.0, lam_max=1.0), folder)
        ours = trained(checked(documented_trainer(), seen), folder)

    weights = torch.cat(seen["weights"])
    everybody = from_all_ranks([seen])
    rank, world = rank_and_world()
    measured = {
        "ranks": world,
        "range_1_1_differences": differences(ones, theirs),
        "delta_differences": differences(ours, theirs),
        "weights_mean": weights.double().mean().item(),
        "weights_min": weights.min().item(),
        "weights_max": weights.max().item(),
        "advantage_difference": max(rank_saw["advantage"] for rank_saw in everybody),
        "loss_difference": max(rank_saw["loss"] for rank_saw in everybody),
        "responses": seen["responses"],
    }
    if rank == 0:
        print_table(measured, len(seen["weights"]))
    end_ranks()
    return measured


def print_table(measured: dict, batches: int) -> None:
    ranks = f"{measured['ranks']} rank{'s' if measured['ranks'] > 1 else ''}"
    weights = "{weights_mean:.6f}, {weights_min:.3f} to {weights_max:.3f}".format(**measured)
    print(f"| {ranks}, {STEPS} updates of {batches} generation batches | |\n|---|---|")
    rows = {
        "range [1, 1]: metrics and parameters unlike TRL's own": measured["range_1_1_differences"],
        "range [0.8, 1.2]: metrics and parameters unlike TRL's own": measured["delta_differences"],
        "λ̄: mean, least to largest": weights,
        "largest difference in λ̄ A": f"{measured['advantage_difference']:.1e}",
        "largest difference in the loss": f"{measured['loss_difference']:.1e}",
        "responses that the mini-batches brought to a rank": measured["responses"],
    }
    for name, value in rows.items():
        print(table_line([name, value]))
