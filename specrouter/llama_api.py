"""llama-server's own JSON: what goes into `/completion` and what comes out of it, events and errors. Pure.

With `upstream`, which asks the questions, the only file that knows it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .answers import AnswerWriter, Ending, Specimen, Totals, timings
from .errors import UpstreamRejected, UpstreamUnavailable
from .jsonedit import loads
from .sampling import max_tokens_of
from .types import Channel, Delta, ServerInfo, Token


@dataclass(frozen=True, slots=True)
class Primed:
    """What a prime cost: prompt tokens that were really evaluated, and seconds on the server."""

    evaluated: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Verified:
    """Draft tokens a server verified by itself within one answer, and how many of them it accepted."""

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Generated:
    """One event of a generation stream.

    `tokens` are the ids of what `text` shows and `probabilities` their share under the raw softmax. Where the
    server reported fewer ids than it generated (characters of several tokens), `complete` is False.
    """

    text: str
    tokens: tuple[int, ...]
    probabilities: tuple[float | None, ...]
    complete: bool
    finished: bool


def server_info(models: Mapping[str, Any], props: Mapping[str, Any]) -> ServerInfo:
    """What `/v1/models` and `/props` say; raises whatever nonsense raises (KeyError, TypeError, …)."""
    entry = models["data"][0] if models.get("data") else {}
    meta = entry.get("meta") or {}
    settings = props.get("default_generation_settings") or {}
    return ServerInfo(
        model=entry.get("id"),
        n_vocab=meta.get("n_vocab"),
        vocab_type=meta.get("vocab_type"),
        n_ctx_train=meta.get("n_ctx_train"),
        n_params=meta.get("n_params"),
        n_bytes=meta.get("size"),
        ftype=meta.get("ftype"),
        n_ctx=settings.get("n_ctx") or meta.get("n_ctx"),
        slots=props.get("total_slots"),
        build=props.get("build_info"),
        model_path=props.get("model_path"),
        bos_token=props.get("bos_token"),
        eos_token=props.get("eos_token"),
        chat_template=props.get("chat_template"),
        modalities=tuple(sorted(name for name, on in (props.get("modalities") or {}).items() if on)),
    )


def tokens(answer: Mapping[str, Any]) -> list[Token]:
    """The tokens in an answer of `/tokenize` with pieces."""
    return [Token(entry["id"], _piece(entry["piece"])) for entry in answer["tokens"]]


def generation_body(ids: Sequence[int], max_tokens: int) -> dict[str, Any]:
    """A streamed greedy `/completion` that shows ids and probabilities."""
    return {
        "prompt": list(ids),
        "n_predict": max_tokens,
        "stream": True,
        "cache_prompt": True,
        "return_tokens": True,
        "samplers": ["top_k"],
        "top_k": 1,
        "n_probs": 1,
    }


def forcing_body(ids: Sequence[int], token: int, stop: str) -> dict[str, Any]:
    """A `/completion` that says `token` after `ids` until it has said `stop`."""
    return {
        "prompt": list(ids),
        # The stop string ends it; the limit has to leave room for the longest draft.
        "n_predict": 256,
        "stop": [stop],
        "temperature": 0,
        "ignore_eos": True,
        "logit_bias": [[token, 1000]],
    }


def parsed_event(server: str, data: bytes) -> dict[str, Any]:
    """An event of a stream. Raises UpstreamRejected for the error it reports, UpstreamUnavailable for nonsense."""
    try:
        event = loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise UpstreamUnavailable(f"server {server!r}: a stream event makes no sense", server=server)
    if "error" in event:
        raise rejected(server, data)
    return event


def read_generated(server: str, data: bytes, counter: TokenCounter) -> Generated:
    """An event of a stream that `generation_body` asked for. Raises UpstreamUnavailable if it makes no sense."""
    event = parsed_event(server, data)
    try:
        said = tuple(int(token) for token in event.get("tokens") or ())
        shares = tuple(_probability(entry) for entry in event.get("completion_probabilities") or ())
        return Generated(
            text=str(event.get("content", "")),
            tokens=said,
            probabilities=shares if len(shares) == len(said) else (None,) * len(said),
            complete=counter.complete(event),
            finished=bool(event.get("stop")),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UpstreamUnavailable(f"server {server!r}: a stream event makes no sense", server=server) from error


class TokenCounter:
    """Notices where a `/completion` stream shows fewer ids than the server has generated."""

    def __init__(self) -> None:
        self._predicted = 0

    def complete(self, event: Mapping[str, Any]) -> bool:
        """Whether this event's `tokens` are all that were generated since the last one."""
        before, self._predicted = self._predicted, int(event.get("tokens_predicted", 0))
        return self._predicted - before == len(event.get("tokens") or ())


def completion_delta(event: Mapping[str, Any], counter: TokenCounter, received: float) -> Delta:
    """What an event of a `/completion` stream adds to the visible answer."""
    complete = counter.complete(event)
    return Delta(
        text=str(event.get("content") or ""),
        channel=Channel.CONTENT,
        token_ids=tuple(event.get("tokens") or ()) if complete else (),
        finished=bool(event.get("stop")),
        received=received,
    )


def joined_completion(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The body that `/completion` would have answered without `stream`, from all events of a stream."""
    last = dict(events[-1])
    last["content"] = "".join(str(event.get("content") or "") for event in events)
    last["generation_settings"] = {**last.get("generation_settings", {}), "stream": False}
    return last


def rejected(server: str, body: bytes) -> UpstreamRejected:
    """The error that a stream event reports, with the status it would have had as an answer of its own."""
    try:
        status = int(loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        status = 500
    status = status if 400 <= status <= 599 else 500
    return UpstreamRejected(f"server {server!r}: {error_text(body)}", server=server, status=status, body=body)


def wants_stream(body: Mapping[str, Any]) -> bool:
    """Whether a request asks for a stream. A server takes whatever is no boolean for no."""
    return body.get("stream") is True


def is_loading(status: int, body: bytes) -> bool:
    """Whether an answer says that the model is still being loaded."""
    return status == 503 and b"unavailable_error" in body


def error_text(body: bytes) -> str:
    """The message of an error body, or its beginning where it has none."""
    try:
        error = loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace").strip() or "no message"


def _piece(piece: str | list[int]) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes(piece)


def _probability(entry: Mapping[str, Any]) -> float | None:
    if "prob" in entry:
        return float(entry["prob"])
    logprob = entry.get("logprob")
    return None if logprob is None else min(1.0, math.exp(float(logprob)))


class CompletionAnswer(AnswerWriter):
    """Writes answers of `/completion`."""

    ends_with_done = False

    def __init__(self, specimen: Specimen, body: Mapping[str, Any], model: str, prompt: str) -> None:
        self.prompt = prompt
        self._events = specimen.stream
        self._whole = specimen.whole
        self._body = body
        self._model = model
        self._text = ""

    def begin(self) -> list[dict[str, Any]]:
        """Nothing: every event has text."""
        return []

    def resume(self, _event: Mapping[str, Any]) -> None:
        """Nothing in an event names its answer."""

    def text(self, text: str, token: int | None, totals: Totals) -> list[dict[str, Any]]:
        """An event for every token, also where it shows nothing yet, with the last id of its text."""
        if token is None:
            return []
        self._text += text
        counts = {"tokens_predicted": totals.predicted, "tokens_evaluated": totals.prompt}
        event = {**self._events[0], **counts, "content": text, "tokens": [token]}
        if self._body.get("timings_per_token") is True:
            event["timings"] = timings(self._events[-1].get("timings", {}), totals)
        return [event]

    def end(self, ending: Ending, totals: Totals) -> list[dict[str, Any]]:
        """The event that says all the rest."""
        return [self._finished(self._events[-1], ending, totals)]

    def whole(self, text: str, ending: Ending, totals: Totals) -> dict[str, Any]:
        """The body; whoever wants token ids in it is not answered here."""
        self._text = text
        return {**self._finished(self._whole, ending, totals), "content": text, "tokens": []}

    def _finished(self, event: Mapping[str, Any], ending: Ending, totals: Totals) -> dict[str, Any]:
        return {
            **event,
            "model": self._model,
            "tokens_predicted": totals.predicted,
            "tokens_evaluated": totals.prompt,
            "generation_settings": _settings(event.get("generation_settings", {}), self._body),
            "prompt": self.prompt,
            "has_new_line": "\n" in self._text,
            "truncated": ending.truncated,
            "stop_type": ending.why.value,
            "stopping_word": ending.stopped_by,
            "tokens_cached": totals.prompt + totals.predicted - 1,
            "timings": timings(event.get("timings", {}), totals),
        }


def _settings(specimen: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """A specimen's `generation_settings` with what this request says about them."""
    stops = body.get("stop") or []
    limit = max_tokens_of(body)
    # The specimen's own ones are the ends of a text, which it was told to ignore.
    ends = specimen.get("logit_bias", []) if body.get("ignore_eos") else []
    known: dict[str, Any] = {
        **{
            key: _as_shown(value, specimen[key]) for key, value in body.items() if key in specimen and value is not None
        },
        "logit_bias": [*_biases(body.get("logit_bias")), *ends],
        "ignore_eos": bool(body.get("ignore_eos")),
        "stop": [stops] if isinstance(stops, str) else stops,
        "stream": wants_stream(body),
        **dict.fromkeys(("n_predict", "max_tokens"), -1 if limit is None else limit),
    }
    return {key: known.get(key, value) for key, value in specimen.items()}


def _biases(asked: object) -> list[dict[str, Any]]:
    """Biases of token ids in the form in which they are shown, from either form in which they can be asked for."""
    pairs = asked.items() if isinstance(asked, dict) else asked if isinstance(asked, list) else ()
    known = [pair for pair in pairs if len(pair) == 2 and str(pair[0]).isdigit()]
    return [{"bias": None if bias is False else _as_shown(bias, 0.0), "token": int(token)} for token, bias in known]


def _as_shown(value: object, specimen: object) -> object:
    """llama-server reckons with single-precision numbers, and shows that."""
    if isinstance(specimen, float) and isinstance(value, int | float):
        return struct.unpack("f", struct.pack("f", value))[0]
    return value
