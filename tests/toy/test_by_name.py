"""toy/by_name.py finds a task by its problem's text. tests/infra covers the problem sets."""

from toy.by_name import decisive_tokens


def test_only_the_toy_has_decisive_tokens():
    """Nothing is marked if the same response is made of another model's tokens."""
    tokens = ["So ", "1", "+", "2", "=", "3", "\n", "answer ", "\\boxed{", "3", "}", "<eos>"]
    assert decisive_tokens("1+2=?", tokens) == [5]
    wrong = [*tokens[:5], "4", *tokens[6:9], "4", *tokens[10:]]
    assert decisive_tokens("1+2=?", wrong) == [5]
    assert decisive_tokens("1+2=?", ["So", " 1+2", "=3"]) is None
    assert decisive_tokens("What is 1+2?", tokens) is None
