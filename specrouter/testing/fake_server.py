"""A llama-server without a model: real sockets, llama-server's event shapes, and every fault on demand.

async with FakeServer(ToyModel(" bako deli")) as server:
    server.replies["/health"] = hang
    ...
    assert server.requests[0].header("authorization") is None
"""

from __future__ import annotations

import codecs
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc

from specrouter.tasks import run_until

from .fake_http import ConnectionEnded, Cut, Exchange, ReceivedRequest, Reply, read_request, respond_with
from .fake_slots import FakeSlots, next_answers, settings_of
from .toy_model import NgramPool, Run, ToyModel

LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
"""What every endpoint answers, with status 503, while a model is being loaded."""

GENERATING = {"/completion", "/v1/completions", "/v1/chat/completions"}
"""The paths of generations, which `FakeServer.running` counts."""

_BOS, _THINK, _END_THINK = 256, 260, 261
_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text that can be shown, the last of its tokens, and how many were said up to it."""

    text: str
    token: int
    predicted: int


class FakeServer:
    """A llama-server to script. Everything public may be changed while it runs.

    `replies` replace the answer to a path, `"*"` to every path. `before_token(exchange, n)` is awaited before the
    event of the n-th piece of text (from 0) and may raise, wait or write. `step_seconds` and `prompt_seconds` are
    what a step and a whole prompt take, `batch_seconds` what every further prompt of one request adds to its step.
    Slots keep what they have evaluated; those of a `forgetful` one forget it whenever a request begins. `cut` makes
    segments of what is written. While `loading`, every answer is the 503 of a server that loads its model. With a
    `pool` it verifies drafts natively.

    `requests` are those received, `open_connections` and `running` count connections and generations of now.
    """

    def __init__(
        self,
        model: ToyModel,
        *,
        name: str = "toy-model.gguf",
        pool: NgramPool | None = None,
        slots: int = 4,
        n_ctx: int = 4096,
    ) -> None:
        self.model = model
        self.name = name
        self.pool = pool
        self.slots = slots
        self.n_ctx = n_ctx
        self.replies: dict[str, Reply] = {}
        self.before_token: Callable[[Exchange, int], Awaitable[None]] | None = None
        self.step_seconds = 0.0
        self.prompt_seconds = 0.0
        self.batch_seconds = 0.0
        self.forgetful = False
        self.cut: Cut = lambda data: (data,)
        self.loading = False
        self.chat_template = "{{ messages }}"
        self.requests: list[ReceivedRequest] = []
        self.open_connections = 0
        self.running = 0
        self._slots = FakeSlots(slots)
        self._port = 0
        self._tasks = anyio.create_task_group()
        self._scope = anyio.CancelScope()
        self._endpoints: dict[str, Reply] = {
            "/health": respond_with({"status": "ok"}),
            "/v1/models": self._models,
            "/props": self._props,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/apply-template": self._apply_template,
            "/completion": self._completion,
            "/v1/completions": self._text,
            "/v1/chat/completions": self._chat,
        }

    # -- life ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.stop()
        return await self._tasks.__aexit__(kind, error, trace)

    @property
    def url(self) -> str:
        """Where it listens; the port stays the same when it is stopped and started."""
        return f"http://127.0.0.1:{self._port}"

    def received(self, path: str) -> list[ReceivedRequest]:
        """The requests for a path."""
        return [request for request in self.requests if request.path == path]

    async def start(self) -> None:
        """Listen, again after `stop`."""
        await self._tasks.start(self._listen)

    def stop(self) -> None:
        """Reset all connections and refuse new ones."""
        self._scope.cancel()

    async def _listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self._port, backlog=512)
        self._port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610
        self._slots.clear()
        with anyio.CancelScope() as self._scope:
            async with listener:
                task_status.started()
                await listener.serve(self._connection)

    async def _connection(self, stream: anyio.abc.SocketStream) -> None:
        self.open_connections += 1
        # Whatever ends this early ends it as a crash would: with a reset.
        linger, rst = struct.pack("ii", 1, 0), True
        try:
            await self._serve(stream)
            rst = False
        except ConnectionEnded as end:
            rst = end.rst
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.open_connections -= 1
            if rst:
                # Closed by the other side already: there is no socket any more, for uvloop not even a closed one.
                with contextlib.suppress(OSError, AttributeError):
                    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await anyio.aclose_forcefully(stream) if rst else await stream.aclose()

    async def _serve(self, stream: anyio.abc.SocketStream) -> None:
        buffer = bytearray()
        while (request := await read_request(stream, buffer)) is not None:
            self.requests.append(request)
            exchange = Exchange(request, stream, lambda data: self.cut(data))

            async def left(buffer: bytearray = buffer) -> None:
                try:
                    while True:
                        buffer += await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return

            async def answer(exchange: Exchange = exchange) -> None:
                await self._answer(exchange)

            # Where writing notices it first, it raises.
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                request.answered = await run_until(left, answer)
            request.left = not request.answered
            if request.left:
                return

    async def _answer(self, exchange: Exchange) -> None:
        path = exchange.request.path
        self.running += path in GENERATING
        try:
            await self._reply_to(exchange)(exchange)
        finally:
            self.running -= path in GENERATING

    def _reply_to(self, exchange: Exchange) -> Reply:
        return self.replies.get(exchange.request.path) or self.replies.get("*") or self.unscripted(exchange)

    def unscripted(self, exchange: Exchange) -> Reply:
        """Its own reply to a request, whatever `replies` says; for scripts that only change a part of it."""
        path = exchange.request.path
        if self.loading:
            return respond_with(LOADING, 503)
        if not exchange.request.is_json:
            return respond_with({"error": {"code": 500, "message": "parse error", "type": "server_error"}}, 500)
        not_found = {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}
        return self._endpoints.get(path) or respond_with(not_found, 404)

    # -- what it says about itself, and tokens -------------------------------------------------------------

    async def _models(self, exchange: Exchange) -> None:
        meta = {"vocab_type": 2, "n_vocab": len(self.model.vocabulary), "n_ctx": self.n_ctx}
        meta |= {"n_ctx_train": self.n_ctx, "n_params": 1000}
        entry = {"id": self.name, "object": "model", "created": 1, "owned_by": "llamacpp", "meta": meta}
        await exchange.respond({"object": "list", "data": [entry]})

    async def _props(self, exchange: Exchange) -> None:
        props = {"default_generation_settings": {"n_ctx": self.n_ctx}, "total_slots": self.slots}
        props |= {"model_path": self.name, "bos_token": "<s>", "eos_token": "<|im_end|>", "build_info": "b1-fake"}
        props |= {"chat_template": self.chat_template, "modalities": {"vision": False, "audio": False}}
        await exchange.respond(props)

    async def _tokenize(self, exchange: Exchange) -> None:
        body = exchange.request.json
        ids = ([_BOS] if body.get("add_special") else []) + self.model.vocabulary.tokenize(body["content"])
        entries = [{"id": token_id, "piece": _piece(self.model.vocabulary.pieces[token_id])} for token_id in ids]
        await exchange.respond({"tokens": entries if body.get("with_pieces") else ids})

    async def _detokenize(self, exchange: Exchange) -> None:
        text = self.model.vocabulary.detokenize(exchange.request.json["tokens"])
        await exchange.respond({"content": text.decode("utf-8", "replace")})

    async def _apply_template(self, exchange: Exchange) -> None:
        await exchange.respond({"prompt": _template(exchange.request.json)})

    # -- generation ----------------------------------------------------------------------------------------

    async def _completion(self, exchange: Exchange) -> None:
        asked = exchange.request.json
        if asked.get("n_predict") == 1 and isinstance(asked.get("prompt"), list) and not asked.get("stream"):
            await self._next_tokens(exchange)
            return
        run = await self._start(exchange, exchange.request.json.get("prompt", ""))
        if run is None:
            return
        body = exchange.request.json
        pieces: list[_Piece] = []
        async with aclosing(self._say(exchange, run)) as said:
            async for piece in said:
                pieces.append(piece)
                if body.get("stream"):
                    event = {"index": 0, "content": piece.text, "tokens": [piece.token], "stop": False, "id_slot": -1}
                    event |= {"tokens_predicted": piece.predicted, "tokens_evaluated": len(run.prompt)}
                    if body.get("n_probs"):
                        event["completion_probabilities"] = [{"id": piece.token, "logprob": -0.1}]
                    await exchange.send_event(event)
        last = {"index": 0, "content": "", "tokens": [], "id_slot": run.slot, "stop": True, "model": self.name}
        last |= {"tokens_predicted": len(run.said), "tokens_evaluated": len(run.prompt)}
        prompt = self.model.vocabulary.detokenize(run.prompt).decode("utf-8", "replace")
        last |= {"generation_settings": settings_of(body), "prompt": prompt, "truncated": False}
        last |= {"has_new_line": False, "stopping_word": "", "tokens_cached": len(run.prompt) + len(run.said) - 1}
        last |= {"stop_type": "limit" if len(run.said) == run.limit else "eos", "timings": run.timings()}
        if body.get("stream"):
            await exchange.send_event(last)
            await exchange.end_stream()
            return
        last["content"] = "".join(piece.text for piece in pieces)
        last["tokens"] = run.said if body.get("return_tokens") else []
        await exchange.respond(last)

    async def _next_tokens(self, exchange: Exchange) -> None:
        """One token behind a prompt of ids, or behind each of several."""
        body = exchange.request.json
        several = bool(body["prompt"]) and isinstance(body["prompt"][0], list)
        prompts = body["prompt"] if several else [body["prompt"]]
        if not await self._accepts(exchange, prompts):
            return
        self._slots.forget = self.forgetful
        taken = self._slots.take(prompts)
        is_new = any(len(prompt) - cached > 1 for prompt, (_, cached) in zip(prompts, taken, strict=True))
        await anyio.sleep(self.step_seconds + (len(prompts) - 1) * self.batch_seconds + self.prompt_seconds * is_new)
        answers = next_answers(self.model, prompts, taken, body)
        await exchange.respond(answers if several else answers[0])

    async def _text(self, exchange: Exchange) -> None:
        run = await self._start(exchange, exchange.request.json.get("prompt", ""))
        if run is None:
            return
        base = {"created": 1, "model": self.name, "system_fingerprint": "b1-fake", "id": "chatcmpl-fake"}
        base["object"] = "text_completion"

        def choice(text: str, reason: str | None) -> dict[str, Any]:
            return {"choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": reason}], **base}

        texts = []
        async with aclosing(self._say(exchange, run)) as said:
            async for piece in said:
                texts.append(piece.text)
                if exchange.request.json.get("stream"):
                    await exchange.send_event(choice(piece.text, None))
        closing = {"usage": run.usage(), "timings": run.timings()}
        if exchange.request.json.get("stream"):
            await exchange.send_event({**choice("", run.finish_reason), **closing})
            await exchange.send_event(b"data: [DONE]\n\n")
            await exchange.end_stream()
        else:
            await exchange.respond({**choice("".join(texts), run.finish_reason), **closing})

    async def _chat(self, exchange: Exchange) -> None:
        body = exchange.request.json
        run = await self._start(exchange, _template(body))
        if run is None:
            return
        base = {"created": 1, "id": "chatcmpl-fake", "model": self.name, "system_fingerprint": "b1-fake"}
        base["object"] = "chat.completion.chunk" if body.get("stream") else "chat.completion"

        def chunk(delta: object, reason: str | None = None) -> dict[str, Any]:
            return {"choices": [{"finish_reason": reason, "index": 0, "delta": delta}], **base}

        message = {"role": "assistant", "content": ""}
        if body.get("stream"):
            await exchange.send_event(chunk({"role": "assistant", "content": None}))
        part = "content"
        async with aclosing(self._say(exchange, run)) as said:
            async for piece in said:
                # Reasoning tags are swallowed and decide which field the text goes to.
                if piece.token in (_THINK, _END_THINK):
                    part = "reasoning_content" if piece.token == _THINK else "content"
                    continue
                message[part] = message.get(part, "") + piece.text
                if body.get("stream"):
                    event = chunk({part: piece.text})
                    if body.get("timings_per_token"):
                        event["timings"] = {**run.timings(), "predicted_n": piece.predicted}
                    await exchange.send_event(event)
        closing = {"usage": run.usage(), "timings": run.timings()}
        if not body.get("stream"):
            choice = {"finish_reason": run.finish_reason, "index": 0, "message": message}
            await exchange.respond({"choices": [choice], **base, **closing})
        elif (body.get("stream_options") or {}).get("include_usage"):
            await exchange.send_event(chunk({}, run.finish_reason))
            await exchange.send_event({"choices": [], **base, **closing})
        else:
            await exchange.send_event({**chunk({}, run.finish_reason), "timings": closing["timings"]})
        if body.get("stream"):
            await exchange.send_event(b"data: [DONE]\n\n")
            await exchange.end_stream()

    async def _start(self, exchange: Exchange, prompt: str | list[int]) -> Run | None:
        """Evaluate the prompt, as far as it is not cached; None when the request was refused instead."""
        body = exchange.request.json
        ids = prompt if isinstance(prompt, list) else [_BOS, *self.model.vocabulary.tokenize(prompt)]
        if not await self._accepts(exchange, [ids]):
            return None
        for key in _LIMITS:
            if not isinstance(body.get(key), int | None):
                await _refuse(exchange, f"{key} must be an integer", "invalid_request_error")
                return None
        self._slots.forget = self.forgetful
        [(slot, cached)] = self._slots.take([ids], body.get("id_slot", -1))
        bias = body.get("logit_bias")
        limits = [body.get(key) for key in _LIMITS]
        limit = next((limit for limit in limits if limit is not None and limit >= 0), 1 << 30)
        cached = cached if body.get("cache_prompt", True) else 0
        run = Run(ids, limit, bias[0][0] if bias else None, body.get("stop", ()), slot, cached, self.step_seconds)
        await anyio.sleep(self.prompt_seconds)
        if self.pool is not None:
            self.pool.add(ids)
        if body.get("stream"):
            await exchange.start_stream()
        return run

    async def _accepts(self, exchange: Exchange, prompts: Sequence[Sequence[int]]) -> bool:
        known = range(len(self.model.vocabulary))
        if any(token_id not in known for ids in prompts for token_id in ids):
            await _refuse(exchange, "Prompt contains invalid tokens", "invalid_request_error")
        elif any(len(ids) >= self.n_ctx for ids in prompts):
            await _refuse(exchange, "the request exceeds the available context size", "exceed_context_size_error")
        else:
            return True
        return False

    async def _say(self, exchange: Exchange, run: Run) -> AsyncGenerator[_Piece]:
        """Generate, and yield text as soon as it is whole characters."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        shown, number = "", 0
        async with aclosing(run.steps(self.model, self.pool)) as steps:
            async for tokens, predicted in steps:
                for index, token in enumerate(tokens):
                    text = decoder.decode(self.model.vocabulary.pieces[token])
                    if not text:
                        continue
                    if self.before_token is not None:
                        await self.before_token(exchange, number)
                    number += 1
                    shown += text
                    yield _Piece(text, token, predicted - len(tokens) + index + 1)
                    if any(shown.endswith(stop) for stop in run.stops):
                        return


async def _refuse(exchange: Exchange, message: str, kind: str) -> None:
    await exchange.respond({"error": {"code": 400, "message": message, "type": kind}}, 400)


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _template(body: Mapping[str, Any]) -> str:
    turns = [f"<|im_start|>{turn['role']}\n{_text_of(turn.get('content'))}<|im_end|>\n" for turn in body["messages"]]
    return "".join(turns) + "<|im_start|>assistant\n"


def _text_of(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text", "") for part in content)
