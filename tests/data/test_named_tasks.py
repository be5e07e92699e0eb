import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.data.row import Message, RawRow
from grpo.data.tasks import TASKS, Split, task_info
from grpo.errors import UserError


def held_out(question: str) -> bool:
    """The split's definition, restated."""
    return int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "big") % 5 == 0


@pytest.mark.parametrize("split", ["train", "eval"])
def test_addition_is_every_pair_of_its_split_once(split: Split) -> None:
    expected = {
        f"addition/{a}+{b}": RawRow(
            id=f"addition/{a}+{b}",
            prompt=(Message("user", f"{a}+{b}="),),
            ground_truth=str(a + b),
            verifier="integer",
            source="addition",
            where=f"task addition, {a}+{b}",
        )
        for a in range(100)
        for b in range(100)
        if held_out(f"addition:{a}+{b}") == (split == "eval")
    }
    rows = TASKS["addition"].all_rows(split)
    assert {row.id: row for row in rows} == expected
    assert len(rows) == len(expected)


def test_multiplication_is_every_pair_of_both_splits_once() -> None:
    task = TASKS["multiplication"]
    pairs = {(a, b) for a in range(13) for b in range(13)}
    evals = {(a, b) for a, b in pairs if held_out(f"multiplication:{a}*{b}")}

    def facts(rows: tuple[RawRow, ...]) -> set[tuple[object, ...]]:
        return {(row.id, row.prompt, row.ground_truth) for row in rows}

    def expected(chosen: set[tuple[int, int]]) -> set[tuple[object, ...]]:
        return {(f"multiplication/{a}*{b}", (Message("user", f"{a}*{b}="),), str(a * b)) for a, b in chosen}

    assert facts(task.all_rows("eval")) == expected(evals)
    assert facts(task.all_rows("train")) == expected(pairs - evals)


@pytest.mark.parametrize("name", TASKS)
def test_the_capacities_are_what_there_is(name: str) -> None:
    task = TASKS[name]
    assert (task.train_capacity, task.eval_capacity) == (len(task.all_rows("train")), len(task.all_rows("eval")))


@given(st.integers(), st.integers(), st.integers(0, 135), st.integers(0, 34))
def test_training_and_held_out_rows_are_disjoint_whatever_the_seeds(a: int, b: int, trains: int, evals: int) -> None:
    task = TASKS["multiplication"]
    train = [row.id for row in task.rows("train", trains, a)]
    held = [row.id for row in task.rows("eval", evals, b)]
    assert (len(set(train)), len(set(held)), set(train) & set(held)) == (trains, evals, set())


def test_the_order_of_a_seed_is_pinned() -> None:
    addition, multiplication = TASKS["addition"], TASKS["multiplication"]
    assert [row.id for row in addition.rows("train", 4, 0)] == [
        "addition/44+31",
        "addition/83+61",
        "addition/82+37",
        "addition/88+42",
    ]
    assert [row.id for row in multiplication.rows("eval", 4, 7)] == [
        "multiplication/1*6",
        "multiplication/2*6",
        "multiplication/7*1",
        "multiplication/2*12",
    ]


def test_fewer_rows_are_the_first_of_more_and_another_seed_orders_them_otherwise() -> None:
    task = TASKS["multiplication"]
    assert task.rows("train", 20, 3) == task.rows("train", 135, 3)[:20]
    assert task.rows("train", 135, 3) != task.rows("train", 135, 4)
    assert set(map(id, task.rows("train", 135, 3))) == set(map(id, task.rows("train", 135, 4)))


@pytest.mark.parametrize(
    ("name", "split", "count", "message"),
    [
        (
            "addition",
            "train",
            7987,
            "train_count is 7987, but task 'addition' has 7986 train prompts. Set train_count to at most 7986.",
        ),
        (
            "multiplication",
            "eval",
            99,
            "eval_count is 99, but task 'multiplication' has 34 eval prompts. Set eval_count to at most 34.",
        ),
    ],
)
def test_asking_for_more_than_there_is_names_the_number(name: str, split: Split, count: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        TASKS[name].rows(split, count, 0)
    assert str(caught.value) == message


def test_an_unknown_task_is_an_error_that_names_the_nearest() -> None:
    assert task_info("addition") is TASKS["addition"]
    with pytest.raises(UserError) as caught:
        task_info("additon")
    assert str(caught.value) == "unknown task 'additon'. Did you mean 'addition'? Tasks: addition, multiplication."
