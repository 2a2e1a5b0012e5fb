from pathlib import Path

import anyio
from specrouter.testing import FakeServer, NgramPool, ToyModel

ANSWER = "Hello!\n\n" + Path("snippets.txt").read_text(encoding="utf-8")


async def main():
    async with FakeServer(ToyModel(ANSWER), pool=NgramPool(n_match=8)) as server:
        server.step_seconds = 0.02
        print("listening on", server.url, flush=True)
        await anyio.sleep_forever()


anyio.run(main)
