"""The process of the engine: reads a command, runs it, answers; ends when the other side is gone.

`python -m quantaudit.training.rl.engine_process FILE-DESCRIPTOR`, as `engine_client` starts it. The file descriptor is
one end of a socket pair. What goes wrong in a command is answered as an error, with its sentence; the engine goes on.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Mapping

import torch

from quantaudit.checkpoint.config_json import parse_config
from quantaudit.core.errors import InputError
from quantaudit.training.rl.decoding import Want
from quantaudit.training.rl.engine import EngineRefusedError, RolloutEngine
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Flush, PostLoad
from quantaudit.training.rl.placement import Placement
from quantaudit.training.rl.sampling import Sampling
from quantaudit.training.rl.wire import (
    Head,
    Message,
    WireError,
    read_bucket,
    read_requests,
    receive_message,
    send_message,
    write_continuations,
    write_state,
)

Handler = Callable[[RolloutEngine, Message], Message]


def serve(connection: socket.socket) -> None:
    """Answers commands until the connection closes; the first one says which model, and how many threads."""
    hello = receive_message(connection).head
    torch.set_num_threads(int(str(hello["threads"])))
    torch.use_deterministic_algorithms(hello["deterministic"] is True)
    config = parse_config(json.loads(str(hello["config"])), "the engine's config").model
    engine = RolloutEngine(config)
    send_message(connection, _reply({"ok": True}))
    while True:
        try:
            message = receive_message(connection)
        except WireError:
            return
        send_message(connection, _answer(engine, message))


def _answer(engine: RolloutEngine, message: Message) -> Message:
    try:
        return HANDLERS[str(message.head["command"])](engine, message)
    except (EngineRefusedError, InputError, RuntimeError, KeyError, ValueError) as error:
        return _reply({"error": str(error), "kind": type(error).__name__})


def _reply(head: Head) -> Message:
    return Message(head, {})


def _done(engine: RolloutEngine) -> Message:
    return _reply({"version": engine.version})


def _load(engine: RolloutEngine, message: Message) -> Message:
    engine.load(read_bucket(message))
    return _done(engine)


def _post_load(engine: RolloutEngine, message: Message) -> Message:
    head = message.head
    engine.post_load(
        int(str(head["version"])),
        PostLoad.model_validate_json(str(head["post"])),
        Placement.model_validate_json(str(head["placement"])),
        EngineExecution.model_validate_json(str(head["execution"])),
    )
    return _done(engine)


def _flush(engine: RolloutEngine, message: Message) -> Message:
    engine.flush_cache(Flush.model_validate_json(str(message.head["flush"])))
    return _done(engine)


def _generate(engine: RolloutEngine, message: Message) -> Message:
    head = message.head
    want = head["want"]
    assert isinstance(want, dict)
    continuations = engine.generate(
        read_requests(head["requests"]),
        Sampling.model_validate_json(str(head["sampling"])),
        Want(routing=bool(want["routing"]), logits=bool(want["logits"]), memory=bool(want["memory"])),
    )
    return write_continuations(continuations)


def _randomise(engine: RolloutEngine, message: Message) -> Message:
    return _reply({"count": engine.randomise(int(str(message.head["seed"])))})


def _checkpoint(engine: RolloutEngine, message: Message) -> Message:
    return engine.checkpoint(with_memory=bool(message.head["with_memory"]))


def _restore(engine: RolloutEngine, message: Message) -> Message:
    engine.restore(message)
    return _done(engine)


def _simple(act: Callable[[RolloutEngine], None]) -> Handler:
    def handle(engine: RolloutEngine, message: Message) -> Message:
        act(engine)
        return _done(engine)

    return handle


HANDLERS: Mapping[str, Handler] = {
    "pause": _simple(RolloutEngine.pause),
    "resume": _simple(RolloutEngine.resume),
    "load": _load,
    "post_load": _post_load,
    "flush": _flush,
    "sleep": _simple(RolloutEngine.sleep),
    "wake": _simple(RolloutEngine.wake),
    "generate": _generate,
    "state": lambda engine, message: write_state(engine.export_state()),
    "checkpoint": _checkpoint,
    "restore": _restore,
    "snapshot": _simple(RolloutEngine.snapshot),
    "randomise": _randomise,
    "compare": lambda engine, message: _reply({"names": list(engine.compare())}),
}


def main() -> None:
    """Runs the engine over the file descriptor named on the command line."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
