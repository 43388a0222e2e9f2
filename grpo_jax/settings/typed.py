"""Types of configs, for annotations.

When a program runs they are all ConfigDicts. Editors and mypy read `typed.pyi`
instead, which has every setting of every group;
`scripts/typed_configs.py` writes it.
"""

from ml_collections import config_dict

Group = config_dict.ConfigDict
Config = Group
Phase = Group
Algorithm = Group
