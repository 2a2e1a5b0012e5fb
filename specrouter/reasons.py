"""What kind of thing a reason is about: why nothing was drafted for an answer, or not to its end."""

from __future__ import annotations

import re

_REASONS = {
    "internal": r"an error in specrouter",
    "plugin": r" raised \w+: |plugin '|has not measured",
    "pending": r"not tried out yet|being tried out",
    "stood_down": r"did not pay",
    "tokenizers": r"tokenizers differ",
    "draft_server": r"draft server \S+ is |^(server \S+ (is |failed|drafts nothing|has another )|the RPC workers of )",
    "target": r"has one slot|n-gram pool|drafts only chains|forgets in its slots|by default|all accepted, only x"
    r"|was started with |a part of a character|refused a simple request",
    "policy": r"acceptance policy|distribution",
    "request": r"several (prompts|answers)|probabilities wanted|images or audio|tokens? wanted|without stream"
    r"|no companion follows|does not cover|that is no (text|boolean)|an empty prompt|mirostat|the sampler "
    r"|asked for without drafts",
    "nothing_to_draft": r"nothing to draft|was over first",
    "took_over": r"took over within",
    "upstream": r"server '",
}
_PATTERNS = {name: re.compile(pattern) for name, pattern in _REASONS.items()}

OTHER = "other"
REASONS = (*_REASONS, OTHER)
"""The classes of reasons: a label has few values, the texts are many and may quote anything."""


def reason_class(reason: str) -> str:
    """Which of REASONS a text is about: why nothing was drafted, or not to the end."""
    return next((name for name, pattern in _PATTERNS.items() if pattern.search(reason)), OTHER)
