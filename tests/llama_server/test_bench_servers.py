"""`specrouter bench` before real servers."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from llama_support import drafting, write_topology

from specrouter.bench.figures import NEAR_TIE
from specrouter.cli import main
from specrouter.demo.processes import ManagedServer

PROMPTS = ["Name five rivers of Europe, one per line.", "Name five mountains of Asia, one per line."]


@pytest.mark.slow
@pytest.mark.usefixtures("drafts_pay")
def test_a_measurement(target: ManagedServer, drafter: ManagedServer, tmp_path: Path) -> None:
    topology = write_topology(tmp_path / "topology.yaml", {"big": target, "laptop": drafter}, {"fast": drafting()})
    prompts, report, page = (tmp_path / name for name in ("prompts.txt", "report.json", "page.html"))
    prompts.write_text("\n".join(PROMPTS))
    options = ["--prompts", prompts, "--tokens", 24, "--audit", "--json", report, "--html", page]
    result = CliRunner().invoke(main, ["bench", str(topology), *map(str, options)])
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_text("utf-8"))
    assert "is emptied before every answer" in found["methods"]["big"]
    [series] = found["series"]
    assert [pair["drafted"]["prompt"] for pair in series["pairs"][1:]] == PROMPTS
    assert sum(pair["drafted"]["accepted"] for pair in series["pairs"]) > 0
    for pair in series["pairs"]:
        assert pair["drafted"]["decoding"] == "inject"
        # Nothing was left in the pool of the answer before, which was to the same prompt.
        assert pair["plain"]["accepted"] < 8
        assert pair["is_equal"] or pair["difference"] < NEAR_TIE
        assert pair["audit"]["tokens"] >= 8
        assert max(pair["audit"]["gaps"], default=0) < NEAR_TIE
        assert len(pair["drafted"]["steps"]) >= pair["drafted"]["tokens"] - pair["drafted"]["accepted"] - 1
    assert "worst gap" in result.output
    text = page.read_text("utf-8")
    assert ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6]) is not None
