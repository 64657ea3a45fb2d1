"""benchmarks/tables.py: a line of a CSV belongs to what was measured."""

import forked
import pytest

from benchmarks.tables import append_csv, claim_csv, read_csv
from infra.errors import UserError
from infra.folder import hash_of

COLUMNS = ("key", "name", "value")
ONE, OTHER = {"command": "gain", "lr": 1.0}, {"command": "gain", "lr": 2.0}


@pytest.mark.parametrize("key", ["007", "nan", "1e5", "", "12345678901234567890"])
def test_a_key_stays_a_text(key, tmp_path):
    append_csv(tmp_path / "a.csv", COLUMNS, [(key, "x", 0.1)])
    (line,) = read_csv(tmp_path / "a.csv", COLUMNS).itertuples(index=False, name=None)
    assert line == (key, "x", 0.1)


def test_lines_are_known_by_what_was_measured(tmp_path):
    """A line that a kill cut off is measured again; another measurement's lines stay."""
    path = tmp_path / "new" / "folder" / "a.csv"
    for identity in (ONE, OTHER, ONE):
        key, known = claim_csv(path, COLUMNS, identity)
        assert key == hash_of(identity)
        missing = {"x", "y"} - {*known["name"]}
        append_csv(path, COLUMNS, [(key, name, identity["lr"]) for name in sorted(missing)])
    assert read_csv(path, COLUMNS)["value"].tolist() == [1, 1, 2, 2]

    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert len(read_csv(path, COLUMNS)) == 3
    key, known = claim_csv(path, COLUMNS, OTHER)
    assert known["name"].tolist() == ["x"]
    append_csv(path, COLUMNS, [(key, "y", 2.0)])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "a note without a line break"])
def test_another_file_stays_as_it_is(text, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(UserError, match="does not have the columns key, name, value: move it away"):
        claim_csv(path, COLUMNS, ONE)
    assert path.read_text() == text


def test_a_csv_that_cannot_be_written_is_refused_before_a_measurement(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "a.csv"):
        with pytest.raises(UserError, match=f"--csv {path} cannot be written"):
            claim_csv(path, COLUMNS, ONE)


def append_many(words):
    """Append 297 lines of 2,000 letters."""
    append_csv(words[0], COLUMNS, 297 * [("key", 2000 * "x", 0.5)])


def test_a_full_disk_leaves_no_part_of_a_measurement(tmp_path):
    path = tmp_path / "a.csv"
    append_csv(path, COLUMNS, [("key", "x", 0.5)])
    before = path.read_bytes()
    full = forked.Forked(append_many, [path], file_limit=2**17)
    assert full.wait() != 0 and "could not be written ([Errno " in full.stderr
    assert path.read_bytes() == before
