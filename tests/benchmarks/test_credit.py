"""benchmarks/credit.py: kinds of tokens, and tables that are only read."""

import pytest

from benchmarks import credit
from benchmarks.__main__ import main


@pytest.mark.parametrize(
    "text, kind",
    [(" 12", "digits"), ("\n", "space"), ("<|im_end|>", "end"), ("=", "operator"),
     ("\\frac", "LaTeX"), ("So", "word"), ("...", "punctuation"), ("3.5,", "digits")],
)  # fmt: skip
def test_kinds_of_tokens(text, kind):
    assert credit.kind_of(text) == kind


def test_tables_are_printed_and_nothing_is_written(tmp_path, capsys):
    path = tmp_path / "x.csv"
    lines = ["toy,batch,,,tokens,12", 'toy,batch,"delta, K = 1",A > 0,mean weight,1.25']
    path.write_text("\n".join([",".join(credit.COLUMNS), *lines]) + "\n")
    before = path.read_bytes()
    main(["credit", "--csv", str(path)])
    assert "**toy**: tokens 12" in (said := capsys.readouterr().out)
    assert "| delta, K = 1 | batch | 1.250 |" in said
    with pytest.raises(SystemExit) as ended:
        main(["credit", "--csv", str(path), "--model", "toy"])
    assert ended.value.code == 2 and "takes no flags" in capsys.readouterr().err
    assert path.read_bytes() == before
