"""Tables: the text of a cell stays what it is."""

import pytest

from grpo_jax import imports
from grpo_jax.data import sources, tables
from grpo_jax.settings import overrides
from tests.data import chats

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


def test_a_set_in_memory_has_the_messages_of_its_file(
  tmp_path, cache_of_datasets
):
  rows = {"asked": [chats.CHAT], "tools": [chats.TOOLS]}
  found = cache_of_datasets.Dataset.from_dict(rows)
  # Arrow has nulls where one schema lacks a field of another.
  assert "None" in str(found[0]["tools"])
  path = str(tmp_path / "a.parquet")
  found.to_parquet(path)
  fields = {"prompt": "asked", "tools": "tools"}
  given = overrides.with_rows({"data": found, "data.fields": fields})
  kept = imports.load(given["data.train_path"], "config.data")
  for source in (
    sources.RowsSource(kept, None, fields),
    tables.DatasetSource(path, "train", None, fields),
  ):
    prompt = source[0]["prompt"]
    assert prompt.options == {"tools": chats.TOOLS}
    assert prompt.messages[2]["tool_calls"] == [chats.CALL]
