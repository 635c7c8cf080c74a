"""The command line: the host's own commands and those of every installed protocol.

It must start quickly, for completion and for scripts that produce one message a call. So a protocol's
commands are imported when one is called, and what serving needs when something is served.
"""

import importlib.metadata
import inspect
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Literal, TextIO

import attrs
from cyclopts import App, CycloptsError, MissingArgumentError, UnusedCliTokensError

import shared
from brokers import plugins
from brokers.commands.catalog import COMMANDS, REMOVED
from brokers.commands.flags import ServeCommand, host_command, listed
from brokers.commands.render import CommandResult, Output
from brokers.errors import ExitCode, exit_code
from brokers.escape import NAME_MAX, escape
from shared.errors import BrokerError

_HELP = """Message brokers: several protocols, one process, one data folder."""

_EXAMPLES = """Examples:

    brokers serve                      every protocol, on its usual port
    brokers serve --port logmq=0       on a port that the system picks
    brokers status                     what is running here
    brokers config show                every setting, and where it comes from
    source <(brokers completion bash)  complete all of this"""


def run(arguments: Sequence[str]) -> int:
    """Run the command line, and return the exit code. A user's mistake is a line, not a traceback."""
    try:
        return _run(arguments)
    except BaseException as error:
        leaves = list(_leaves(error))
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
            return ExitCode.INTERRUPTED
        if any(_has_left(leaf) for leaf in leaves):
            # The reader of our output has left (`| head`): say nothing more, and nothing on stderr.
            _turn_away(sys.stdout)
            return 128 + signal.SIGPIPE
        if not all(
            isinstance(leaf, BrokerError | OSError) or _is_no_text(leaf) or _is_no_thread(leaf)
            for leaf in leaves
        ):
            raise
        for line in dict.fromkeys(line for leaf in leaves for line in _said(leaf).splitlines()):
            _complain(line)
        try:
            sys.stdout.flush()
        except OSError:  # the disk is full: Python would report it again at exit, with code 120
            _turn_away(sys.stdout)
        return max(ExitCode.USAGE if _is_no_text(leaf) else exit_code(leaf) for leaf in leaves)


def _complain(line: str) -> None:
    try:
        print(f"brokers: {escape(line)}", file=sys.stderr)
    except OSError:  # standard error cannot be written; Python must not try again at exit and change the code
        _turn_away(sys.stderr)


def _turn_away(stream: TextIO) -> None:
    """Point a stream at /dev/null, which drops what it has buffered."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def root(arguments: Sequence[str] = ()) -> App:
    """The whole tree of commands."""
    app = App(
        name="brokers",
        help=_HELP,
        help_epilogue=_EXAMPLES,
        help_format="plaintext",
        version=lambda: importlib.metadata.version("brokers"),
    )
    called = next(iter(arguments), "")
    protocols = {
        name: (f"commands.protocols:{name}", "" if name == called else plugins.summary(name))
        for name in plugins.names()
        if name not in COMMANDS
    }
    for name, (where, text) in {**COMMANDS, **protocols}.items():
        # The one that is called shows its own help. The others have a line that needs no import.
        app.command(f"brokers.{where}", name=name, help=None if name == called else text)
    return app


@host_command(
    "completion",
    "source <(brokers completion bash)",
    "brokers completion zsh > ~/.zsh/completions/_brokers",
    "brokers completion fish > ~/.config/fish/completions/brokers.fish",
)
def completion(shell: Literal["bash", "zsh", "fish"]) -> str:
    """Print a completion script for a shell.

    Parameters
    ----------
    shell
        The shell that is to complete.
    """
    return root().generate_completion(prog_name="brokers", shell=shell)


def _run(arguments: Sequence[str]) -> int:
    for words in (1, 2):
        name = " ".join(arguments[:words])
        if name in REMOVED:
            _complain(f"{name}: this command was removed; use {REMOVED[name]}")
            return ExitCode.USAGE
    app = root(arguments)
    try:
        command, bound, _ = app.parse_args(arguments, print_error=False, exit_on_error=False)
    except UnusedCliTokensError as error:
        _complain(f"{' '.join(error.unused_tokens or ())}: nothing is expected there; --help says what is")
        return ExitCode.USAGE
    except MissingArgumentError as error:
        name = error.keyword or (error.argument.name if error.argument else "")
        missing = "needs a value" if error.keyword else "is missing"
        _complain(f"{' '.join(error.command_chain or ())}: {name} {missing}; --help says what is expected")
        return ExitCode.USAGE
    except CycloptsError as error:
        _complain(" ".join(str(error).split()))
        return ExitCode.USAGE
    result = command(*bound.args, **bound.kwargs)
    if isinstance(result, ServeCommand):
        from brokers.host.serving import serve

        return serve(attrs.evolve(result, words=tuple(arguments)))
    columns = bound.arguments.get("columns")
    output = Output(
        as_json=bool(bound.arguments.get("json")),
        wide=bool(bound.arguments.get("wide")),
        columns=None if columns is None else [name.strip() for name in columns.split(",")],
        listed=listed(command),
    )
    if inspect.iscoroutine(result) or isinstance(result, AsyncIterable):
        import trio

        result = trio.run(finish, result, output)
    code = int(ExitCode.OK)
    # The import is slow. While nobody has imported the module, no such request exists.
    if (plugin := sys.modules.get(f"{shared.__name__}.plugin")) is not None:
        from brokers.commands import server

        if isinstance(result, plugin.ApiRequest):
            result = server.ask(result)
    if isinstance(result, CommandResult):
        result, code = result.shown, result.code
    output.show(result)
    return code


async def finish(result: Any, output: Output) -> Any:
    """Await what is async, show rows as they come, and return what is left to show."""
    if inspect.iscoroutine(result):
        result = await result
    if isinstance(result, AsyncIterable):
        return await stream(result, output)
    return result


async def stream(rows: AsyncIterable[Any], output: Output) -> None:
    """Show rows as they come, until their reader leaves."""
    import trio

    from shared.cli.output_reader import OutputReader

    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        if isinstance(rows, AsyncGenerator):
            # Closed here, because an early end would leave its connections to the garbage collector.
            await stack.enter_async_context(aclosing(rows))
        nursery.start_soon(OutputReader().wait_left)
        await output.stream(rows)
        nursery.cancel_scope.cancel()


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _has_left(error: BaseException) -> bool:
    """Whether the reader of our output has; where help is shown, rich makes an exit with code 1 of it."""
    return isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError)


def _is_no_text(error: BaseException) -> bool:
    """Whether an argument is not UTF-8: its bytes are lone surrogates then."""
    return isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed"


def _is_no_thread(error: BaseException) -> bool:
    """Whether the system refused a thread, for which Python has no class of errors."""
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


def _said(error: BaseException) -> str:
    if _is_no_thread(error):
        how = "ulimit -u, or TasksMax= in a systemd unit"
        return f"no thread can be started: raise the limit on processes and threads ({how})"
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:NAME_MAX]} is not UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
