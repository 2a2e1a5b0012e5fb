"""`specrouter check --measure` on running servers: what it finds makes sense, whatever the machine is like."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from llama_support import drafting, write_topology

from specrouter.cli import main
from specrouter.demo.processes import ManagedServer
from specrouter.measuring import BATCHES


def test_a_model_that_drafts_for_itself(tmp_path: Path, target: ManagedServer, drafter: ManagedServer) -> None:
    file = write_topology(tmp_path / "topology.yaml", {"big": target, "laptop": drafter}, {"fast": drafting()})
    result = CliRunner().invoke(main, ["check", str(file), "--measure", "--json"])
    assert result.exit_code == 0, result.output
    pair = json.loads(result.stdout)["routes"][0]["pairs"][0]
    assert pair["unmeasured"] is None
    found = pair["measured"]
    batches = {int(size): cost for size, cost in found["target"]["batches"].items()}
    assert tuple(batches) == BATCHES
    assert batches[32] > batches[2] > 0
    assert found["target"]["plain_step"] > found["target"]["round_trip"] > 0
    assert found["drafts"]["token"] > 0
    trace = found["drafts"]["trace"]
    # One model says the same as itself, but for near ties.
    assert sum(token["accepted"] for token in trace) > 0.9 * len(trace)
    assert all(0 < token["probability"] <= 1 for token in trace if token["probability"] is not None)
    ratios = {one["strategy"]: one["ratio"] for one in found["predicted"]}
    assert set(ratios) == {"none", "inject", "fanout", "llama-server's own"}
    # Whether fanout works here is a matter of the build's default slots.
    assert all(0 < ratios[strategy] < 20 for strategy in ("none", "inject", "llama-server's own"))
    assert found["bounds"]
    assert "what batches cost big" in result.stderr
