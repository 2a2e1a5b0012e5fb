"""Speed of a drafting route against the plain target, as ratios within one run.

    python tests/benchmarks/injection.py                                   # good draft: the same weights
    python tests/benchmarks/injection.py --draft-type Q4_0                 # poor draft
    python tests/benchmarks/injection.py --temperature 0.8

Three real servers on this machine: the plain target (the deep twin of a small model, without flags), the same target
with an n-gram pool, and the draft. One thread each; the targets on the first core, the draft on the second. The pair
of answers to a prompt is measured one after the other, in turns, and no prompt is asked twice: a pool remembers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from specrouter.app import serve_in_background
from specrouter.demo.downloads import CPU_ONLY, fetch_model, find_llama_server
from specrouter.demo.processes import ManagedServer
from specrouter.demo.twin import cached_twin
from specrouter.ngram_pool import FLAGS

PROMPTS = (
    "Explain how photosynthesis works.",
    "Write a python function which checks if a string is a palindrome.",
    "What is the capital of France and what is it known for?",
    "Tell me a short story about a fox and a crow.",
    "How do I boil an egg? Give me steps.",
    "What causes the seasons on Earth?",
    "Write a SQL query that finds the ten best customers by revenue.",
    "Summarize the plot of Romeo and Juliet.",
    "Explain recursion to a child.",
    "Give me five tips for sleeping better.",
    "What is the difference between TCP and UDP?",
    "How does a refrigerator work?",
    "Describe the water cycle.",
    "What are the benefits of regular exercise?",
    "Write a bash script that counts lines in all text files.",
    "Explain what an API is.",
)


@dataclass(frozen=True)
class Answer:
    """One measured answer: tokens per second after the first one, and seconds until it."""

    text: str
    speed: float
    first: float
    drafted: int
    accepted: int


async def ask(client: httpx.AsyncClient, model: str, prompt: str, tokens: int, temperature: float) -> Answer:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": temperature,
        "seed": 1,
        "stream": True,
    }
    started, first, text, timings = time.perf_counter(), 0.0, "", {}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            timings = event.get("timings") or timings
            said = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if said and not first:
                first = time.perf_counter() - started
            text += said
    seconds = time.perf_counter() - started - first
    return Answer(
        text,
        (timings["predicted_n"] - 1) / seconds,
        first,
        timings.get("draft_n", 0),
        timings.get("draft_n_accepted", 0),
    )


async def wait_for_drafting(client: httpx.AsyncClient) -> None:
    """Until the router has tried out the target; the question is not one of those measured."""
    body = {"model": "drafted", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    for _ in range(120):
        response = await client.post("/v1/chat/completions", json=body)
        if response.headers["x-specrouter-decoding"].startswith("inject"):
            return
        await asyncio.sleep(1)
    raise SystemExit(f"no drafting: {response.headers['x-specrouter-decoding']}")


async def measure(client: httpx.AsyncClient, arguments: argparse.Namespace) -> None:
    ratios = []
    for index, prompt in enumerate(PROMPTS[: arguments.prompts]):
        answers = {}
        for model in ("plain", "drafted") if index % 2 else ("drafted", "plain"):
            answers[model] = await ask(client, model, prompt, arguments.tokens, arguments.temperature)
        plain, drafted = answers["plain"], answers["drafted"]
        ratios.append(drafted.speed / plain.speed)
        print(
            f"{prompt[:32]:32} plain {plain.speed:5.1f} tok/s  drafted {drafted.speed:5.1f} tok/s  "
            f"x{ratios[-1]:.2f}  accepted {drafted.accepted}/{drafted.drafted}  "
            f"{'same text' if plain.text == drafted.text else 'other text'}",
            flush=True,
        )
    together = len(ratios) / sum(1 / ratio for ratio in ratios)
    print(
        f"{len(ratios)} prompts: median x{statistics.median(ratios):.2f}, from x{min(ratios):.2f} "
        f"to x{max(ratios):.2f}, all together x{together:.2f}"
    )


async def run(arguments: argparse.Namespace, folder: Path) -> None:
    command = [*find_llama_server(arguments.llama_server).prefix, "-t", "1", "-tb", "1", *CPU_ONLY]
    model = fetch_model(arguments.model)
    target = cached_twin(model, factor=5, type="BF16")
    draft = model if arguments.draft_type is None else cached_twin(model, factor=1, type=arguments.draft_type)
    cores = sorted(os.sched_getaffinity(0))
    plan = {
        "plain": (target, [], cores[0]),
        "big": (target, FLAGS.split(), cores[0]),
        "laptop": (draft, [], cores[-1]),
    }
    async with AsyncExitStack() as stack:
        urls = {}
        for name, (file, flags, core) in plan.items():
            server = ManagedServer(
                [*command, "-m", str(file), *flags], name=name, log=folder / f"{name}.log", cores=(core,)
            )
            urls[name] = (await stack.enter_async_context(server)).url
        topology = folder / "topology.yaml"
        routes = {
            "plain": {"target": "plain"},
            "drafted": {"target": "big", "draft": {"use": "remote", "options": {"server": "laptop"}}},
        }
        servers = {name: {"url": url} for name, url in urls.items()}
        topology.write_text(yaml.safe_dump({"version": 1, "servers": servers, "routes": routes}))
        base_url = await stack.enter_async_context(serve_in_background(topology))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=base_url, timeout=600, trust_env=False))
        await wait_for_drafting(client)
        await measure(client, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", type=Path, help="a llama-server built for this machine")
    parser.add_argument("--model", type=Path, help="a GGUF file instead of SmolLM2-135M-Instruct")
    parser.add_argument("--draft-type", help="requantise the draft, for example Q4_0 (default: the model as it is)")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=96)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(arguments, Path(folder)))


main()
