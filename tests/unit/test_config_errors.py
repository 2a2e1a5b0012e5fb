"""Each faulty topology of tests/config_errors/ gives exactly the messages in the file beside it."""

from __future__ import annotations

from pathlib import Path

import config_plugins
import pytest

from specrouter.errors import TopologyError

CASES = Path(__file__).resolve().parent.parent / "config_errors"
SECRETS = {
    "DIGITS": "4455667788",
    "LINE": "kept-secret \n",
    "YAML": "[x, y]",
    "UNSHOWN": "kept secret",
    "URL_V1": "http://kept-secret:1/v1",
}
ENVIRONMENT = {"EMPTY": "", "PORT": "8080", **SECRETS}


@pytest.mark.parametrize("case", sorted(path.stem for path in CASES.glob("*.yaml")))
def test_messages(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES)
    with pytest.raises(TopologyError) as caught:
        config_plugins.load(Path(f"{case}.yaml"), ENVIRONMENT)
    problems = [problem.replace(f"{CASES}/", "") for problem in caught.value.problems]
    assert problems == (CASES / f"{case}.txt").read_text(encoding="utf-8").splitlines()
    for secret in (*SECRETS.values(), "hush"):
        assert secret.strip() not in "\n".join(problems)


def test_every_expectation_has_its_topology() -> None:
    assert {path.stem for path in CASES.glob("*.txt")} == {path.stem for path in CASES.glob("*.yaml")}
