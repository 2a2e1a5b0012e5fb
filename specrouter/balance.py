"""Which replica of a model answers a request: the least busy one, or the one that has its prompt in the cache.

Evaluating a prompt that no cache knows costs seconds, so where a conversation is matters more than a little load.
`Balancer` has the rule; `prompt_keys` is how prompts are compared without keeping any of their text.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .types import ServerState
from .upstream import LlamaServer

_PREFERENCE = {
    ServerState.UP: 0,
    ServerState.UNKNOWN: 0,
    ServerState.LOADING: 1,
    ServerState.STOPPED: 1,
    ServerState.DOWN: 2,
}

REMEMBERED = 16_384
"""Conversations (a key per turn), and beginnings (a key per 512 characters), that a route remembers."""

SHORTEST_BEGINNING = 2048
"""Characters, some 500 tokens; less is evaluated too soon to matter."""

_BLOCK = 512
_IDS_IN_BLOCK = 16
_LATEST = 4096  # places in a prompt that are compared with earlier requests

# In the order in which templates write them. The last two are open-ended: the next request may go on within a line.
_MESSAGES = ("tools", "system", "instructions", "input_extra", "messages", "input")
_TEXTS = ("input_prefix", "prompt")

# A line, or a block of a longer one.
_LINE = re.compile(rf"[^\n]{{0,{_BLOCK - 1}}}.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PromptKeys:
    """What a request's prompt has in common with others, as hashes: equal hashes are equal beginnings.

    `whole` stands for the request, None where it has no prompt. `continued` are those it may go on from, the latest
    last. `beginnings` are (length, hash), one for about 512 of the prompt's `length` characters.
    """

    whole: int | None = None
    continued: Sequence[int] = ()
    beginnings: Sequence[tuple[int, int]] = ()
    length: int = 0


def prompt_keys(body: Mapping[str, Any], headers: Sequence[tuple[bytes, bytes]]) -> PromptKeys:
    """The keys of a request, from its parsed body and its headers (names in lower case).

    A conversation is known by the header `x-conversation-id`, else by the field `prompt_cache_key`, else by what was
    said: a request goes on from an earlier one if it begins with all of that one's messages or complete lines, and
    has more. Takes a time in proportion to the prompt, and keeps none of its text.
    """
    key = length = 0
    ends: deque[int] = deque(maxlen=_LATEST)
    beginnings = []
    for piece in _pieces(body):
        key = hash((key, piece))
        ends.append(key)
        blocks = length // _BLOCK
        length += len(piece) if isinstance(piece, (str, bytes)) else 1
        if length // _BLOCK > blocks:
            beginnings.append((length, key))
    name = dict(headers).get(b"x-conversation-id") or body.get("prompt_cache_key")
    if name and isinstance(name, (str, bytes)):
        return PromptKeys(hash(name), [hash(name)], beginnings, length)
    return PromptKeys(ends.pop() if ends else None, ends, beginnings, length)


def _pieces(body: Mapping[str, Any]) -> Iterator[Hashable]:
    """The prompt, cut at places that do not depend on what follows them."""
    for field in _MESSAGES:
        value = body.get(field)
        if value:
            # The list itself has no end: more messages may follow.
            for item in value if isinstance(value, list) else [value]:
                yield from _flat(item)
    for field in _TEXTS:
        value = body.get(field)
        if value and isinstance(value, str):
            lines = _LINE.findall(value)
            is_complete = lines[-1].endswith("\n") or len(lines[-1]) == _BLOCK
            yield from lines if is_complete else lines[:-1]
        elif value:
            yield from _token_ids(value) or _flat(value)


def _flat(value: object) -> Iterator[Hashable]:
    """Parsed JSON as a row of small pieces. Not recursive: nobody knows how deep a client nests."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield from (value[start : start + _BLOCK] for start in range(0, len(value), _BLOCK))
        elif isinstance(value, list):
            left += [..., *reversed(value)]
        elif isinstance(value, dict):
            left.append(...)
            for name, item in reversed(value.items()):
                # Anthropic's clients set this mark on the last messages, so it moves on at each turn.
                if name != "cache_control":
                    left += [item, (name,)]
        else:
            yield value


def _token_ids(value: Any) -> list[bytes]:
    """Blocks of token ids, four bytes each, which is about the length of their text; nothing if it is not ids."""
    try:
        ids = array("i", value).tobytes()
    except (TypeError, OverflowError):
        return []
    size = 4 * _IDS_IN_BLOCK
    return [ids[end - size : end] for end in range(size, len(ids) + 1, size)]


class Affinity:
    """Which server (by name) has which prompt in its cache, as far as can be known from who answered what."""

    def __init__(self) -> None:
        self._conversations: OrderedDict[int, str] = OrderedDict()
        self._beginnings: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def conversation(self, keys: PromptKeys) -> str | None:
        """The server that answered the latest request of those that this one goes on from."""
        known = (self._conversations[key] for key in reversed(keys.continued) if key in self._conversations)
        return next(known, None)

    def beginning(self, keys: PromptKeys) -> Sequence[str]:
        """The servers that know the longest part of this prompt, if it is long and at least half of it."""
        for length, key in reversed(keys.beginnings):
            if length < keys.length / 2:
                break
            if key in self._beginnings:
                return self._beginnings[key]
        return ()

    def remember(self, keys: PromptKeys, server: str) -> None:
        """Note that the server answered a request and has its prompt in the cache now."""
        if keys.whole is not None:
            _put(self._conversations, keys.whole, server)
        for length, key in keys.beginnings:
            if length >= SHORTEST_BEGINNING:
                known = self._beginnings.get(key, ())
                _put(self._beginnings, key, known if server in known else (*known, server))


_Value = TypeVar("_Value")


def _put(memory: OrderedDict[int, _Value], key: int, value: _Value) -> None:
    """Remember a value, and forget what was put in longest ago."""
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > REMEMBERED:
        memory.popitem(last=False)


class Balancer:
    """Chooses among the replicas of a route. The rule:

    1. A conversation stays with the replica that answered it last, as long as that one is well and not crowded. It
       is crowded when all its slots are busy and another replica has a free one, or when all slots of all are busy
       and its queue is longer than another's by a whole round of its slots.
    2. Anything else goes to the least busy replica: the one with the fewest requests in flight for each slot.
    3. Of equally busy ones, to one that knows the beginning of the prompt, if that is long and at least half of it,
       such as a document; else to the one that was chosen longest ago.

    On a replica whose slots are all busy, somebody else most likely got the slot with the conversation's cache, so
    little is lost by going. That two requests begin alike does not make them a conversation: all chats with the same
    system prompt would gather on one replica. So a beginning only decides between equals. On a busier replica it
    would gain nothing, since the slot that has it is taken, and once all replicas have it, it decides nothing.
    """

    def __init__(self, servers: Sequence[LlamaServer]) -> None:
        self._servers = servers
        self._affinity = Affinity()
        self._choices = 0
        self._chosen = dict.fromkeys((server.name for server in servers), 0)

    def order(self, keys: PromptKeys) -> list[LlamaServer]:
        """The replicas in the order in which to try them, those that are not well last.

        Takes the first one for chosen: send the request there, and count it, before anything else is decided.
        """
        servers = in_order(self._servers)
        well = [server for server in servers if _PREFERENCE[server.state] == 0]
        if not well:
            return servers
        well.sort(key=lambda server: (_load(server), self._chosen[server.name]))
        first = self._staying(keys, well) or self._knowing(keys, well) or well[0]
        self._choices += 1
        self._chosen[first.name] = self._choices
        return [first, *(server for server in well if server is not first), *servers[len(well) :]]

    def is_busy(self) -> bool:
        """Whether all slots of all replicas that are well are busy."""
        return all(_load(server) >= 1 for server in self._servers if _PREFERENCE[server.state] == 0)

    def answered(self, keys: PromptKeys, server: LlamaServer) -> None:
        """Note who answered in the end: the conversation goes on there."""
        self._affinity.remember(keys, server.name)

    def _staying(self, keys: PromptKeys, well: Sequence[LlamaServer]) -> LlamaServer | None:
        name = self._affinity.conversation(keys)
        home = next((server for server in well if server.name == name), None)
        if home is None:
            return None
        ours, least = _load(home), _load(well[0])
        crowded = ours >= 1 and (least < 1 or ours - least >= 1)
        return None if crowded else home

    def _knowing(self, keys: PromptKeys, well: Sequence[LlamaServer]) -> LlamaServer | None:
        names = self._affinity.beginning(keys)
        least = _load(well[0])
        return next((server for server in well if server.name in names and _load(server) == least), None)


def in_order(servers: Sequence[LlamaServer]) -> list[LlamaServer]:
    """The servers as declared, those that are not well last."""
    return sorted(servers, key=lambda server: _PREFERENCE[server.state])


def _load(server: LlamaServer) -> float:
    return server.in_flight / (server.info.slots or 1)
