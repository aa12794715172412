"""Stages of a build: run once, recorded with their settings and time."""

import json

import pytest

from regard.tasks.translation.build_stages import BuildStoppedError, StageRecords


def test_a_stage_runs_once_and_its_time_adds_up_over_interruptions(tmp_path):
    calls: list[int] = []

    def work():
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return {"pairs": 3}

    reported: list[tuple[str, bool]] = []
    records = StageRecords(
        tmp_path / "mine" / "stages",
        lambda: False,
        "cpu",
        lambda stage, seconds: reported.append((stage, seconds is not None)),
    )
    with pytest.raises(KeyboardInterrupt):
        records.run("data", {"size": (1, 2)}, work)
    before = json.loads((tmp_path / "mine" / "stages" / "data.json").read_bytes())
    assert "figures" not in before
    assert records.listed() == []
    assert not records.has_ended("data")
    assert [records.run("data", {"size": [1, 2]}, work) for _ in range(3)] == [{"pairs": 3}] * 3
    assert len(calls) == 2
    assert reported == [("mine, data", False), ("mine, data", False), ("mine, data", True)]
    assert records.has_ended("data")
    (listed,) = records.listed()
    assert listed["seconds"] >= before["seconds"] > 0
    with pytest.raises(ValueError, match="this stage was made with other size"):
        records.run("data", {"size": [1, 3]}, work)


def test_after_the_time_no_stage_begins_but_those_that_ended_are_read(tmp_path):
    assert StageRecords(tmp_path, lambda: False, "cpu").run("data", {}, lambda: {"pairs": 3}) == {"pairs": 3}
    late = StageRecords(tmp_path, lambda: True, "cpu")
    assert late.run("data", {}, lambda: None) == {"pairs": 3}
    with pytest.raises(BuildStoppedError, match="teacher"):
        late.run("teacher", {}, dict)
    assert not (tmp_path / "teacher.json").exists()


def test_a_stage_that_is_asked_to_stop_is_not_over(tmp_path):
    records = StageRecords(tmp_path, lambda: False, "cpu")
    with pytest.raises(BuildStoppedError, match="data"):
        records.run("data", {}, lambda: None)
    assert records.listed() == []
    assert records.run("data", {}, lambda: {"pairs": 3}) == {"pairs": 3}
