"""Types of configs, for annotations.

At run time all of them are ConfigDicts. Editors and mypy read `typed.pyi`
instead, which has every setting of every group; `scripts/typed_configs.py`
writes that file.
"""

from ml_collections import config_dict

Group = config_dict.ConfigDict
Config = Group
AnyPhase = Group
Algorithm = Group
