from pathlib import Path

from specrouter.testing import DraftStrategyConformance
from specrouter_snippets import Snippets

TEXTS = Path(__file__).with_name("snippets.txt")


class TestSnippets(DraftStrategyConformance):
    strategy = Snippets
    options = {"file": str(TEXTS)}
    answer = TEXTS.read_text(encoding="utf-8")
