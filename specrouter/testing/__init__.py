"""For tests of plugins and of specrouter itself: a scripted fake llama-server and the toy model it speaks with."""

from __future__ import annotations

from .fake_http import Exchange, Reply, RequestRecord, hang, reset, respond_with
from .fake_server import FakeServer
from .toy_model import NgramPool, ToyModel, ToyVocabulary

__all__ = [
    "Exchange",
    "FakeServer",
    "NgramPool",
    "Reply",
    "RequestRecord",
    "ToyModel",
    "ToyVocabulary",
    "hang",
    "reset",
    "respond_with",
]
