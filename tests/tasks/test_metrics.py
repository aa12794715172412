"""Metrics of several tasks: precision, recall, F1 and confusions by hand, and the paired bootstrap test of accuracy."""

import numpy as np
import pytest

from regard.tasks.metrics import LabelMetrics, check_same_signatures, paired_bootstrap


def metrics(wanted: str, found: str, labels: str = "abc", **more) -> LabelMetrics:
    """A letter for each label."""
    return LabelMetrics(
        labels=tuple(labels),
        wanted=tuple(wanted),
        found=tuple(found),
        unit="words",
        signature=f"words:{len(wanted)}",
        outputs=tuple(found),
        **more,
    )


def test_precision_recall_and_f1_on_paper():
    """a: wanted 3, found 2, right 2; b: wanted 1, found 2, right 1; c is neither wanted nor found."""
    scores = metrics("aaab", "aabb").by_label.values()
    assert [one.precision for one in scores] == [100, 50, 0]
    assert [one.recall for one in scores] == [pytest.approx(200 / 3), 100, 0]
    assert [one.f1 for one in scores] == [pytest.approx(80), pytest.approx(200 / 3), 0]


def test_accuracy_and_the_mean_of_the_labels_that_occur():
    found = metrics("aaab", "aabb")
    assert (found.right, found.accuracy) == (3, 75)
    assert found.macro_f1 == pytest.approx((80 + 200 / 3) / 2)
    assert [(score.name, score.signature) for score in found.scores] == [
        ("accuracy", "words:4"),
        ("macro F1", "words:4"),
    ]


def test_the_table_has_labels_and_the_confusion_matrix():
    assert metrics("aaab", "aabb").table().splitlines() == [
        "accuracy 75.00 %   words:4",
        "",
        "label    precision  recall      F1     words",
        "a           100.00   66.67   80.00         3",
        "b            50.00  100.00   66.67         1",
        "mean         75.00   83.33   73.33         4",
        "",
        "confusion matrix: rows are wanted, columns found",
        "   a  b",
        "a  2  1",
        "b  ·  1",
    ]


def test_of_many_labels_the_most_frequent_confusions_are_named():
    labels = "abcdefghijklmnopqrstu"
    lines = metrics(labels + "aaab", labels + "bbbc", labels).table().splitlines()
    assert lines[-3:] == ["most frequent confusions", "a taken for b 3 of 4", "b taken for c 1 of 2"]


def test_the_file_has_both_by_label():
    found = metrics("aaab", "aabb", kinds=("x", "x", "y", "y")).to_json()
    assert found["confusion_matrix"] == {"a": {"a": 2, "b": 1}, "b": {"b": 1}, "c": {}}
    assert found["by_label"]["b"] == {
        "words": 1, "right": 1, "precision": 50.0, "recall": 100.0, "f1": pytest.approx(200 / 3)
    }  # fmt: skip
    assert found["by_kind"] == {"x": {"words": 2, "right": 2}, "y": {"words": 2, "right": 1}}
    assert (found["words"], found["right"], found["accuracy"]) == (4, 3, 75.0)
    assert "by_kind" not in metrics("aaab", "aabb").to_json()


# --- significance ---


def test_an_accuracy_that_is_clearly_better_is_significant_and_chance_is_not():
    wanted = "ab" * 100
    good, poor = metrics(wanted, wanted), metrics(wanted, "aa" * 100)
    assert good.compare(poor)["accuracy"].p_value < 0.01
    slip = metrics(wanted, wanted[:-1] + "a")
    assert good.compare(slip)["accuracy"].p_value > 0.05
    assert good.compare(good)["accuracy"].p_value == 1.0
    assert good.compare(poor)["accuracy"].signature == "words:200|bs:1000|seed:12345"


def test_words_are_resampled_with_their_sentences():
    """Two sentences of 100 words: whole sentences are drawn, so a share is 0, a half or all of them."""
    sentences = (0,) * 100 + (1,) * 100
    one = metrics("a" * 200, "a" * 100 + "b" * 100, example_ids=sentences)
    assert one.compare(one)["accuracy"].intervals == (50.0, 50.0)
    alone = metrics("a" * 200, "a" * 100 + "b" * 100)
    assert alone.compare(alone)["accuracy"].intervals[0] < 10


def test_the_interval_is_that_of_a_proportion():
    """Of 400 fair coins: 1.96 standard errors of 2.5 percent."""
    right = np.tile([0, 1], 200)
    found = paired_bootstrap(right, 1 - right, np.ones(400), what="coins:400")
    assert found.intervals == pytest.approx((4.9, 4.9), abs=0.4)


def test_scores_that_were_computed_otherwise_are_refused_in_one_line():
    check_same_signatures({"BLEU": "tok:13a"}, {"BLEU": "tok:13a"})
    with pytest.raises(ValueError, match="BLEU is tok:13a for the first and tok:none for the second model; compare"):
        check_same_signatures({"BLEU": "tok:13a"}, {"BLEU": "tok:none"})
    with pytest.raises(ValueError, match="chrF is not measured for the first and x for the second model"):
        check_same_signatures({}, {"chrF": "x"})
