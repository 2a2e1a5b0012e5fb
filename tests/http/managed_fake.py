"""A program that answers as a llama-server does, for a router to run; in many ways not a good one.

`--exit CODE TEXT` ends it at once. `--child FILE` starts another process and writes its number to the file. `--stay`
lets it live on when whoever started it is killed. `--argv FILE` appends its arguments, the variable FAKE and the
working directory to the file. `--slow SECONDS` is how long an answer takes; the prompt `die` ends it with code 3.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

QUESTIONS = {
    "/health": {"status": "ok"},
    "/v1/models": {"data": [{"id": "fake", "meta": {"n_vocab": 100}}]},
    "/props": {"total_slots": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--exit", nargs=2)
    parser.add_argument("--child", type=Path)
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--argv", type=Path)
    parser.add_argument("--slow", type=float, default=0)
    parser.add_argument("--api-key")
    options = parser.parse_args()
    if options.argv:
        with options.argv.open("a") as stream:
            stream.write(json.dumps([sys.argv[1:], os.environ.get("FAKE"), str(Path.cwd())]) + "\n")
    if options.exit:
        sys.stderr.write(options.exit[1] + "\n")
        sys.exit(int(options.exit[0]))
    if options.child:
        options.child.write_text(str(subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL).pid))
    if options.stay:
        ctypes.CDLL(None).prctl(1, 0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.stdout.write("fake server: listening\n")
    sys.stdout.flush()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(QUESTIONS[self.path])

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if body["prompt"] == "die":
                sys.stderr.write("fatal error: told to die\n")
                sys.stderr.flush()
                os._exit(3)
            time.sleep(options.slow)
            self.answer({"object": "text_completion", "choices": [{"text": str(os.getpid()), "index": 0}]})

        def answer(self, body: object) -> None:
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
