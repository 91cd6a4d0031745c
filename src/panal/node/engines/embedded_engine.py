"""llama.cpp in a process of its own: ``python -m panal.node.engines.embedded_engine --home H --model F``.

Started by the agent only (see child.py). In exact mode a prompt is read token by token, so that a greedy
answer is the same whether it is made in one piece or continued elsewhere; it costs speed, and embeddings.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from panal.node.engines.child import (
    Greeting,
    Ready,
    die_with_parent,
    lower_priority,
    read_greeting,
    say_ready,
    wait_for_parent_to_go,
)

BATCH_TOKENS = 512
EXACT_BATCH_TOKENS = 64


def parameters(given: argparse.Namespace, greeting: Greeting) -> Any:
    """llama.cpp's parameters for what was asked."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(given.model)
    params.model_alias = {given.name} if isinstance(params.model_alias, set) else given.name
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [greeting.api_key]
    params.ui = False
    params.n_parallel = given.slots
    params.n_ctx = given.context_tokens * given.slots
    params.cache_ram_mib = 0
    params.cpuparams.n_threads = given.threads
    params.cpuparams_batch.n_threads = given.threads
    params.verbosity = 0
    if given.exact:
        params.n_batch = EXACT_BATCH_TOKENS
        params.n_ubatch = 1
    else:
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return params


def port_of(address: str) -> int:
    """The port of ``http://host:port``."""
    return int(address.rstrip("/").rpartition(":")[2])


def keep_stdout_clean() -> None:
    """Our stdout carries one line for the agent; whatever the library prints goes to the log."""
    own = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(own, "w")


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="embedded_engine")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context-tokens", type=int, required=True)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--nice", type=int, default=0)
    given = parser.parse_args()
    die_with_parent()
    lower_priority(given.nice)
    greeting = read_greeting()
    keep_stdout_clean()
    import xllamacpp

    server = xllamacpp.Server(parameters(given, greeting))
    say_ready(
        Ready(port=port_of(server.listening_address), context_tokens=given.context_tokens, slots=given.slots)
    )
    wait_for_parent_to_go()
    # The library's own way down takes its time; the owner's memory is wanted back now.
    os._exit(0)


if __name__ == "__main__":
    main()
