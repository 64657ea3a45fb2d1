"""The toy's vocabulary and its word-level tokenizer."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CONNECTIVES = ["So ", "Then ", "Now ", "Thus ", "Next ", "Here ", "Also ", "Hence "]

VOCABULARY = ["<pad>", "<eos>", "<unk>"]
VOCABULARY += list("0123456789")
VOCABULARY += list("+-*=?\n")
VOCABULARY += ["answer ", "\\boxed{", "}"]
VOCABULARY += CONNECTIVES

TOKEN_ID = {token: i for i, token in enumerate(VOCABULARY)}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer over VOCABULARY; decode(encode(text)) returns the text."""
    tokenizer = Tokenizer(models.WordLevel(TOKEN_ID, unk_token="<unk>"))
    # A token is a word with its space, a box's opening, or a character.
    pattern = Regex(r"[A-Za-z]+ |\\boxed\{|\n|.")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
    tokenizer.decoder = decoders.Fuse()  # tokens contain their own spaces: join them unchanged
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
