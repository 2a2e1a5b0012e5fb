"""Run the llama.cpp server inside the `xllamacpp` package with llama-server's own flags.

    python -m specrouter.demo.xllamacpp_server --package-folder DIR -m model.gguf --port 8080 -t 4

Only the flags that the demo and the tests use are known; another one is an error, never ignored. It stops at
SIGTERM, at Ctrl-C, and when its standard input ends: whoever holds the other end of that pipe can die in any
way without leaving a server behind, on every platform.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
import time
from types import ModuleType
from typing import Any, NoReturn

_DEFAULT_SLOTS = 4  # llama-server's default


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The flags, under the names llama-server has for them; unknown ones end the program."""
    parser = argparse.ArgumentParser(prog="xllamacpp-server", description=__doc__, allow_abbrev=False)
    parser.add_argument("--package-folder", required=True)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("-c", "--ctx-size", type=int)
    parser.add_argument("-np", "--parallel", type=int)
    parser.add_argument("-dev", "--device", choices=["none"])
    parser.add_argument("--spec-type", choices=["none", "ngram-mod"], default="none")
    parser.add_argument("--spec-ngram-mod-n-match", type=int)
    parser.add_argument("--spec-ngram-mod-n-min", type=int)
    parser.add_argument("--spec-ngram-mod-n-max", type=int)
    return parser.parse_args(arguments)


def common_params(package: ModuleType, flags: argparse.Namespace) -> Any:
    """llama.cpp's parameters for the flags."""
    params = package.CommonParams()
    params.model.path = flags.model
    params.hostnames = [flags.host]
    params.port = flags.port
    if flags.threads is not None:
        params.cpuparams.n_threads = flags.threads
        params.cpuparams_batch.n_threads = flags.threads
    if flags.ctx_size is not None:
        params.n_ctx = flags.ctx_size
    params.n_parallel = flags.parallel or _DEFAULT_SLOTS
    params.kv_unified = flags.parallel is None
    if flags.device == "none":
        params.n_gpu_layers = 0
        params.no_kv_offload = True
        params.no_op_offload = True
    if flags.spec_type == "ngram-mod":
        params.speculative.types = [package.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_MOD]
        pool = params.speculative.ngram_mod
        for name in ("n_match", "n_min", "n_max"):
            value = getattr(flags, f"spec_ngram_mod_{name}")
            if value is not None:
                setattr(pool, name, value)
    return params


def main() -> NoReturn:
    flags = parse_arguments()
    sys.path.insert(0, flags.package_folder)
    package = importlib.import_module("xllamacpp")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    try:
        server = package.Server(common_params(package, flags))  # loads the model, then serves from its own threads
    except RuntimeError as error:
        sys.exit(f"xllamacpp: {error}")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        sys.exit(0)
    finally:
        del server


def _exit_at_end_of_input() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
