from pathlib import Path

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import Drafter, DraftStrategy
from specrouter.types import DraftToken


class SnippetDrafter(Drafter):
    def __init__(self, text, target):
        self.text = text
        self.target = target
        self.tokens = None

    async def draft(self, context, max_tokens):
        if self.tokens is None:
            self.tokens = await self.target.tokenize(self.text)
        start = behind(context[-4:], [token.id for token in self.tokens])
        for token in self.tokens[start:][:max_tokens]:
            yield DraftToken(token.id, token.piece)


def behind(last, ids):
    """The place in `ids` behind the first occurrence of `last`, the end if there is none."""
    ends = range(len(last), len(ids))
    return next((end for end in ends if ids[end - len(last) : end] == last), len(ids))


class Snippets(DraftStrategy):
    """What follows in a file of texts that answers quote; needs no server."""

    name = "snippets"
    options_schema = {
        "type": "object",
        "properties": {"file": {"type": "string", "description": "The texts, a UTF-8 file."}},
        "required": ["file"],
        "additionalProperties": False,
    }

    def __init__(self, options, servers):
        super().__init__(options, servers)
        try:
            self.text = Path(options["file"]).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"file: {error}") from error

    def start(self, generation):
        return SnippetDrafter(self.text, generation.target)


@hookimpl
def specrouter_draft_strategies():
    return [Snippets]
