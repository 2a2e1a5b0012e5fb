"""Predicts what drafting makes of a target's speed. Pure: the same numbers in, the same numbers out.

    conditions = Conditions(costs=TargetCosts({4: 1.6, 16: 3.2}), plain_step=0.14, draft_token=0.02, rtt_drafter=0.005)
    prediction = injection(conditions, steady(0.8, tokens=2000, seed=1))

It knows no prompt, no machine and no load, and is as right as its numbers are. `specrouter bench` measures.
"""

from .conditions import Conditions, TargetCosts
from .injection import injection
from .native import native, rpc
from .prediction import Prediction
from .stepwise import fanout, round_seconds
from .traces import Drafted, Trace, as_lines, from_lines, like_text, steady, stretches

__all__ = [
    "Conditions",
    "Drafted",
    "Prediction",
    "TargetCosts",
    "Trace",
    "as_lines",
    "fanout",
    "from_lines",
    "injection",
    "like_text",
    "native",
    "round_seconds",
    "rpc",
    "steady",
    "stretches",
]
