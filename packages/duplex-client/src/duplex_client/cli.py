"""The ``duplex-client`` command.

Owns its options and exit codes: 0 when the conversation was held, 1 when it could not be, 2 for a wrong command line, 130 when
Ctrl-C came before a file was answered.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import duplex_client
from duplex_client.audio import UnreadableAudio, UnwritableAudio, check_writable
from duplex_client.devices import NoSoundDevice
from duplex_client.errors import DuplexClientError
from duplex_client.talk import AnswerFailed, TalkOptions, talk
from duplex_client.transport import DEFAULT_URL

INTERRUPTED = 130

app = typer.Typer(name="duplex-client", add_completion=False, no_args_is_help=True)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(duplex_client.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Talk to a full-duplex speech model."""


@app.command("talk")
def talk_command(
    *,
    wav: Annotated[Path | None, typer.Option(help="Say what this sound file holds (any rate, any channels).")] = None,
    mic: Annotated[bool, typer.Option("--mic", help="Speak into the microphone; needs duplex-client\\[mic].")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the answer, as heard, to this .wav or .flac file instead of playing it.")
    ] = None,
    url: Annotated[str, typer.Option(envvar="DUPLEX_URL", help="The server.")] = DEFAULT_URL,
    api_key: Annotated[str | None, typer.Option(envvar="DUPLEX_API_KEY", help="Its key, if it wants one.")] = None,
    model: Annotated[str | None, typer.Option(help="The model to ask for.")] = None,
    instructions: Annotated[str | None, typer.Option(help="What the assistant should be like.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds that an answer may take.", min=0.1)] = 30.0,
) -> None:
    """Say a file, or speak, and hear the answer; shows who speaks, transcripts and latencies as it goes."""
    if (wav is not None) == mic:
        raise typer.BadParameter("give either --wav FILE or --mic")
    if out is not None:
        _check_out(out)
    options = TalkOptions(
        url=url, api_key=api_key, model=model, instructions=instructions, wav=wav, out=out, patience_s=patience
    )
    logging.getLogger("duplex_client").setLevel(logging.ERROR)  # what it would say is shown in its place
    try:
        asyncio.run(talk(options, Console()))
    except AnswerFailed:
        raise typer.Exit(1) from None  # the conversation as shown ends with why
    except (DuplexClientError, NoSoundDevice, UnreadableAudio, ValueError) as exc:
        typer.echo(f"duplex-client: {exc}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("hung up", err=True)
        if wav is not None:
            raise typer.Exit(INTERRUPTED) from None


def _check_out(path: Path) -> None:
    """Refuse a file that could not be written when the answer is there."""
    try:
        check_writable(path)
    except UnwritableAudio as exc:
        raise typer.BadParameter(str(exc), param_hint="--out") from exc


def main() -> None:
    """Run the command."""
    app()
