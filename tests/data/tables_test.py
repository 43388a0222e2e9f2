"""Tables: the text of a cell stays what it is."""

import pytest

from grpo_jax.data import tables

CSV = 'prompt,gold,level\n1,007,1\n"None?",None,\n"NA?",NA,2\n"",,3\n'


@pytest.mark.parametrize("name", ["a.csv", "a [1].TSV"])
def test_text_in_csv_keeps_its_digits(name, tmp_path, cache_of_datasets):
  path = tmp_path / name
  path.write_text(CSV.replace(",", "\t") if "TSV" in name else CSV)
  fields = {"prompt": "prompt", "answer": "gold"}
  source = tables.DatasetSource(str(path), "train", None, fields)
  assert [source[i]["prompt"] for i in range(3)] == ["1", "None?", "NA?"]
  assert [source[i]["answer"] for i in range(3)] == ["007", "None", "NA"]
  assert [source[i]["extras"]["level"] for i in range(3)] == [1, None, 2]
  # A cell without a text is none.
  with pytest.raises(ValueError, match="row 3: found 'prompt' = None"):
    source[3]


def test_a_column_of_whole_numbers_with_a_gap(tmp_path, cache_of_datasets):
  path = str(tmp_path / "a.parquet")
  rows = {"prompt": ["x", "y", "z"], "answer": [3.0, None, 2.5]}
  cache_of_datasets.Dataset.from_dict(rows).to_parquet(path)
  source = tables.DatasetSource(path, "train")
  assert [source[i]["answer"] for i in range(3)] == ["3", "", "2.5"]
