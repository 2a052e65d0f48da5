"""The loop's end of an engine in another process: every command has a deadline, and a dead engine is an error.

A call that gets no answer in time, or whose connection breaks, ends the engine and raises `EngineDiedError`. The
process ends by itself when the loop does. What was begun is answered before the next command is sent, whether anybody
has asked for the answer or not.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

from quantaudit.checkpoint.config_export import export_config
from quantaudit.core.serial import Json
from quantaudit.model.config import ModelConfig
from quantaudit.training.rl.bucket import Bucket
from quantaudit.training.rl.decoding import Continuation, Request, Want
from quantaudit.training.rl.engine import Answer, EngineRefusedError
from quantaudit.training.rl.execution import EngineExecution
from quantaudit.training.rl.faults import Flush, PostLoad
from quantaudit.training.rl.placement import Placement
from quantaudit.training.rl.sampling import Sampling
from quantaudit.training.rl.state import EngineState
from quantaudit.training.rl.wire import (
    Head,
    Message,
    WireError,
    read_continuations,
    read_state,
    receive_message,
    send_message,
    write_bucket,
    write_requests,
)

_START_SECONDS = 120.0  # importing torch on a busy machine
_END_SECONDS = 5.0


class EngineDiedError(RuntimeError):
    """Says that the engine's process ended or did not answer in time.

    Attributes:
        during: The command that it was given.
    """

    def __init__(self, during: str, what: str) -> None:
        self.during = during
        super().__init__(f"the rollout engine {what} during `{during}`")


@dataclass(slots=True)
class _Begun:
    """A command that was sent.

    Attributes:
        command: The command.
        reply: Its answer, once it was read.
    """

    command: str
    reply: Message | None = None


class EngineClient:
    """An engine in a process of its own."""

    def __init__(self, config: ModelConfig, *, timeout_seconds: float) -> None:
        """Starts the process and waits until it answers.

        Args:
            config: Sizes of the model.
            timeout_seconds: Deadline of every command.
        """
        self._timeout = timeout_seconds
        self._version = -1
        self._is_asleep = False
        self._begun: _Begun | None = None
        self._connection, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "quantaudit.training.rl.engine_process", str(theirs.fileno())]
            threads = str(torch.get_num_threads())
            environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment
            )
        hello: Head = {
            "config": export_config(config, is_packed=False).decode(),
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        self._send(_Begun("start"), Message(hello, {}), _START_SECONDS)
        self._settle()

    @property
    def pid(self) -> int:
        """Returns the number of the engine's process."""
        return self._process.pid

    @property
    def version(self) -> int:
        """Returns the version that the engine says it serves; -1 before the first."""
        return self._version

    @property
    def is_asleep(self) -> bool:
        """Tells whether it has given its memory back."""
        return self._is_asleep

    def pause(self) -> None:
        """Stops writing tokens, so that weights can be loaded."""
        self._command("pause")

    def resume(self) -> None:
        """Writes tokens again."""
        self._command("resume")

    def load(self, bucket: Bucket) -> None:
        """Takes in the pieces of a bucket."""
        self._call("load", write_bucket(bucket))

    def post_load(self, version: int, post: PostLoad, placement: Placement, execution: EngineExecution) -> None:
        """Makes the loaded weights count."""
        head: Head = {
            "version": version,
            "post": post.model_dump_json(),
            "placement": placement.model_dump_json(),
            "execution": execution.model_dump_json(),
        }
        self._call("post_load", Message(head, {}))

    def flush_cache(self, flush: Flush) -> None:
        """Drops what was remembered of prefixes."""
        self._call("flush", Message({"flush": flush.model_dump_json()}, {}))

    def sleep(self) -> None:
        """Gives its memory back; weights and what was remembered of prefixes stay on the host."""
        self._command("sleep")
        self._is_asleep = True

    def wake(self) -> None:
        """Takes back what lies on the host."""
        self._command("wake")
        self._is_asleep = False

    def generate(self, requests: Sequence[Request], sampling: Sampling, want: Want) -> list[Continuation]:
        """Continues requests."""
        return self.begin(requests, sampling, want)()

    def begin(self, requests: Sequence[Request], sampling: Sampling, want: Want) -> Answer:
        """Asks for continuations, which the engine's process writes meanwhile; its deadline begins with the answer."""
        wanted: Json = {"routing": want.routing, "logits": want.logits, "memory": want.memory}
        head: Head = {
            "requests": write_requests(list(requests)),
            "sampling": sampling.model_dump_json(),
            "want": wanted,
        }
        begun = self._begin("generate", Message(head, {}))
        return lambda: read_continuations(self._answer(begun))

    def export_state(self) -> EngineState:
        """Returns what was loaded and what was derived."""
        return read_state(self._command("state"))

    def snapshot(self) -> None:
        """Remembers the weights as they are, for `compare`."""
        self._command("snapshot")

    def randomise(self, seed: int) -> int:
        """Overwrites every loaded and derived weight with noise; returns how many."""
        return int(str(self._call("randomise", Message({"seed": seed}, {})).head["count"]))

    def compare(self) -> tuple[str, ...]:
        """Returns the names of weights that are not as they were at the snapshot, and goes back to it."""
        names = self._command("compare").head["names"]
        assert isinstance(names, list)
        return tuple(map(str, names))

    def checkpoint(self, *, with_memory: bool) -> Message:
        """Returns all that it holds, awake or asleep; of prefixes only if they are wanted."""
        return self._call("checkpoint", Message({"with_memory": with_memory}, {}))

    def restore(self, held: Message) -> None:
        """Holds what another engine did, and is awake; its execution comes with the next post-load step."""
        self._call("restore", held)
        self._is_asleep = False

    def close(self) -> None:
        """Ends the engine: it is asked by closing the connection, and killed if it does not hear that."""
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _command(self, command: str) -> Message:
        return self._call(command, Message({}, {}))

    def _call(self, command: str, message: Message) -> Message:
        return self._answer(self._begin(command, message))

    def _begin(self, command: str, message: Message) -> _Begun:
        self._settle()
        begun = _Begun(command)
        self._send(begun, Message({"command": command, **message.head}, message.tensors), self._timeout)
        return begun

    def _answer(self, begun: _Begun) -> Message:
        if begun.reply is None:
            self._settle()
        reply = begun.reply
        assert reply is not None
        if "error" in reply.head:
            raise EngineRefusedError(f"the engine refused `{begun.command}`: {reply.head['error']}")
        if "version" in reply.head:
            self._version = int(str(reply.head["version"]))
        return reply

    def _send(self, begun: _Begun, message: Message, timeout: float) -> None:
        with self._ending_on_failure(begun.command, timeout):
            self._connection.settimeout(timeout)
            send_message(self._connection, message)
        self._begun = begun

    def _settle(self) -> None:
        """Reads the answer that is still to come, if there is one."""
        begun, self._begun = self._begun, None
        if begun is not None:
            with self._ending_on_failure(begun.command, self._connection.gettimeout() or 0.0):
                begun.reply = receive_message(self._connection)

    @contextmanager
    def _ending_on_failure(self, command: str, timeout: float) -> Iterator[None]:
        """Ends an engine that gives no answer or closes the connection.

        Raises:
            EngineDiedError: If it does.
        """
        try:
            yield
            return
        except TimeoutError:
            what = f"gave no answer within {timeout:g} s"
        except (WireError, OSError):
            what = "ended"
        self._end()
        raise EngineDiedError(command, what)

    def _end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()
