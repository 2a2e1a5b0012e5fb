"""What `specrouter init` tells people: what was found, what was decided, what to do next. Pure."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from specrouter.config import LoadedTopology
from specrouter.ngram_pool import FLAGS
from specrouter.request_log import visible
from specrouter.terminal import route_line

from .findings import Kind, LeftOut
from .plan import Plan
from .writing import facts

_WIDTH = 110

HOW_TO_START = f"""\
To start a llama-server, with the model that shall answer; the --spec flags let it verify drafts:
  llama-server -m BIG.gguf --port 8081 {FLAGS}
And one that drafts, on another machine or GPU, with a much smaller model of the same family:
  llama-server -m SMALL.gguf --host 0.0.0.0 --port 8082
Then: specrouter init localhost:8081 OTHER-MACHINE:8082
To see it work without models of your own: specrouter demo"""


def left_out_lines(left_out: Sequence[LeftOut]) -> Iterator[str]:
    """The addresses that are not in the topology, and why."""
    for one in left_out:
        word = "once is enough" if one.duplicate else "LEFT OUT"
        yield f"{word}: {visible(one.address.written)}: {one.reason}"


def found_lines(plan: Plan) -> Iterator[str]:
    """What was found, with the routes that were made of it and what would be better, as `specrouter check` shows it."""
    yield "servers"
    for name, found in plan.found.items():
        yield f"  {name}: {facts(found)} ({visible(found.address.written)})"
    yield from (f"  {line}" for line in left_out_lines(plan.left_out))


def route_lines(plan: Plan, loaded: LoadedTopology) -> Iterator[str]:
    """The routes as they are written, and why they are so."""
    yield "routes"
    for route in plan.routes:
        yield f"  {route_line(loaded.topology.routes[route.name], loaded.registry)}"
        if route.obstacle is not None:
            yield from _wrapped(f"NO DRAFTS YET: {route.obstacle}", "    ")
        else:
            for reason in route.why:
                yield from _wrapped(reason, "    ")


def advice_lines(plan: Plan) -> Iterator[str]:
    """What would make it faster."""
    yield "what would make it faster"
    for hint in plan.advice:
        yield from _wrapped(hint, "  - ", "    ")


def next_lines(plan: Plan, output: Path | None) -> Iterator[str]:
    """What to do now; `output` is None where the topology went to standard output."""
    file = shlex.quote(str(output)) if output is not None else "topology.yaml"
    yield "next" if output is not None else "next, with what was written in topology.yaml"
    if any(route.drafts for route in plan.routes):
        yield f"  specrouter check --measure {file}   # what drafts are worth here; may be left out"
    yield f"  specrouter serve {file}"
    route = plan.routes[0]
    match plan.found[route.targets[0]].kind:
        case Kind.GENERATES:
            path, body = "chat/completions", f'"messages": [{{"role": "user", "content": "{_QUESTION}"}}]'
        case Kind.EMBEDS:
            path, body = "embeddings", f'"input": "{_QUESTION}"'
        case Kind.RERANKS:
            path, body = "rerank", f'"query": "{_QUESTION}", "documents": ["Because."]'
    yield f"  curl -i http://127.0.0.1:{plan.port}/v1/{path} -H 'Content-Type: application/json' \\"
    yield f"""    -d '{{"model": "{route.name}", {body}}}'"""


_QUESTION = "Why is the sky blue?"


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    rest = first if rest is None else rest
    return textwrap.wrap(
        visible(text),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
