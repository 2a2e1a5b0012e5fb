"""The questions of a measurement, and who is asked which."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrouter.bench.prompts import (
    KINDS,
    OPEN_TEMPERATURE,
    WARM_UP,
    Prompt,
    chosen,
    different_prompts,
    read_prompts,
    same_prompts,
    shipped,
)
from specrouter.errors import SetupError


def test_the_prompts_that_come_with_the_package() -> None:
    prompts = shipped()
    counts = Counter(prompt.kind for prompt in prompts)
    assert tuple(counts) == KINDS
    # Neighbours are alike, so there is an even number of each kind.
    assert all(count >= 6 and count % 2 == 0 for count in counts.values())
    texts = [prompt.text for prompt in (*prompts, *WARM_UP)]
    assert len(set(texts)) == len(texts)
    assert {prompt.temperature for prompt in prompts if prompt.kind == "open"} == {OPEN_TEMPERATURE}
    assert {prompt.temperature for prompt in prompts if prompt.kind != "open"} == {0.0}


def test_neighbours_are_alike_in_length() -> None:
    for question in different_prompts(shipped()):
        one, other = len(question.plain.text), len(question.drafted.text)
        assert max(one, other) < 1.5 * min(one, other), question.plain.text[:40]


def test_prompts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text('Why?\n\n{"prompt": "How?", "kind": "short", "temperature": 1}\n{"prompt": "x", "kind": "open"}\n')
    expected = [Prompt("own", "Why?"), Prompt("short", "How?", 1.0), Prompt("open", "x", OPEN_TEMPERATURE)]
    assert read_prompts(file) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", ":1: not JSON"),
        ("ok\n{}", ':2: "prompt" must be a text'),
        ('{"prompt": ""}', ':1: "prompt" must be a text'),
        ('{"prompt": "a", "kind": 7}', ':1: "kind" must be a text'),
        ('{"prompt": "a", "temperature": "hot"}', ':1: "temperature" must be a number from 0 on, not "hot"'),
        ('{"prompt": "a", "temperature": -1}', "from 0 on, not -1"),
        ('{"prompt": "a", "temperature": true}', "from 0 on, not true"),
        ("\n \n", "no prompts in it"),
        (b"\xff", "not UTF-8 (byte 0)"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str | bytes | None, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SetupError) as caught:
        read_prompts(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_choosing() -> None:
    prompts = [Prompt("a", "1"), Prompt("b", "2"), Prompt("a", "3"), Prompt("b", "4", 0.8)]
    assert [prompt.text for prompt in chosen(prompts)] == ["1", "3", "2", "4"]
    assert [prompt.text for prompt in chosen(prompts, limit=1)] == ["1", "2"]
    assert [prompt.text for prompt in chosen(prompts, ["b"])] == ["2", "4"]
    assert {prompt.temperature for prompt in chosen(prompts, temperature=0.3)} == {0.3}
    with pytest.raises(SetupError, match="--kind c: no prompt is of this kind; there are a, b"):
        chosen(prompts, ["c"])


KINDS_OF_PROMPTS = st.lists(st.sampled_from("abc"), max_size=40)


@given(KINDS_OF_PROMPTS)
def test_no_prompt_is_asked_twice_of_a_target_that_remembers(kinds: list[str]) -> None:
    prompts = [Prompt(kind, f"{index}") for index, kind in enumerate(kinds)]
    questions = different_prompts(prompts)
    asked = [prompt for question in questions for prompt in (question.plain, question.drafted)]
    assert len(set(asked)) == len(asked)
    assert all(question.plain.kind == question.drafted.kind and not question.is_same for question in questions)
    assert len(asked) == sum(count - count % 2 for count in Counter(kinds).values())
    plain_first = sum(question.plain_first for question in questions)
    assert plain_first - len(questions) / 2 in (0, 0.5)


def test_who_gets_the_first_of_two_prompts_changes() -> None:
    questions = different_prompts([Prompt("a", f"{index}") for index in range(16)])
    firsts = [(int(question.plain.text) % 2 == 0, question.plain_first) for question in questions]
    assert Counter(firsts) == {(True, True): 2, (True, False): 2, (False, True): 2, (False, False): 2}


@given(KINDS_OF_PROMPTS)
def test_every_prompt_is_asked_both_ways_of_one_that_forgets(kinds: list[str]) -> None:
    prompts = [Prompt(kind, f"{index}") for index, kind in enumerate(kinds)]
    questions = same_prompts(prompts)
    assert [question.drafted for question in questions] == prompts
    assert all(question.is_same for question in questions)
    assert [question.plain_first for question in questions] == [index % 2 == 0 for index in range(len(prompts))]
