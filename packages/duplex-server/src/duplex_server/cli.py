"""The ``duplex-server`` command.

Owns the arguments, the sentences on the terminal and the exit status. Called by the console script of the package. A start
that cannot succeed is one clear sentence on stderr and status 1; nothing is loaded before everything that can be checked has
been.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table

import duplex_server
from duplex_core.authentication import Authenticator, AuthenticatorSpec
from duplex_core.observers import SessionObserverSpec
from duplex_core.plugins import PluginError, PluginHost, PluginReport, load_plugins
from duplex_core.spec import ModelSpec
from duplex_core.subcommands import SubcommandSpec
from duplex_server import builtins
from duplex_server.deploy import DeployError, profiles, read_settings, resolve
from duplex_server.engine.lease import Lifetime
from duplex_server.engine.omni import DEFAULT_DETECTOR, DuplexOmni, EngineSettings
from duplex_server.engine.served import ModelUnavailable, ServedModel, prepare, session_limit, with_transcriber
from duplex_server.engine.stages.host import StageStartError, check
from duplex_server.logs import LogFormat, set_format
from duplex_server.planning import describe, show
from duplex_server.process import run, settle_memory
from duplex_server.serving.app import create_app
from duplex_server.serving.origins import is_loopback
from duplex_server.serving.server import ListenError, address_of, listen
from duplex_server.serving.server import serve as serve_until_told
from duplex_server.tracing import TracingUnavailable, start_tracing

OWN_COMMANDS = ("serve", "models", "plan")

Model = Annotated[
    str | None,
    typer.Argument(help="A model's id, or a folder with a checkpoint; the embedded default when left out."),
]
MaxSessions = Annotated[
    int | None, typer.Option(help="Most sessions at a time; the model package's default when left out.", min=1)
]
Profile = Annotated[
    str | None,
    typer.Option(envvar="DUPLEX_PROFILE", help="Deploy profile of the model's package; its default when left out."),
]
Deploy = Annotated[Path | None, typer.Option(help="YAML file with deploy settings of the model.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One deploy setting; dots reach inside.")
]
Transcriber = Annotated[
    str | None, typer.Option(help="Transcriber of a plugin's, for a model that does not transcribe by itself.")
]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serve full-duplex speech models behind a Realtime API.",
)


def main() -> None:
    """Run the command line; the process's entry."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        plugins = load_plugins([builtins])
    except PluginError as exc:
        _stop(str(exc))
    for spec in plugins.commands.values():
        _add_subcommand(spec)
    app(prog_name="duplex-server", obj=plugins)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(duplex_server.__version__)
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Serve full-duplex speech models behind a Realtime API."""


@app.command()
def serve(  # noqa: PLR0917 - the parameters are the command's options
    context: typer.Context,
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    max_sessions: MaxSessions = None,
    profile: Profile = None,
    deploy: Deploy = None,
    assignments: Assignments = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="DUPLEX_API_KEY", help="Key that clients must show.", show_envvar=True)
    ] = None,
    allow_unauthenticated: Annotated[
        bool, typer.Option("--allow-unauthenticated", help="Listen beyond this machine without a key.")
    ] = False,
    detector: Annotated[str, typer.Option(help="Speech detector: silero, energy, or a plugin's.")] = DEFAULT_DETECTOR,
    end_of_turn: Annotated[
        str | None,
        typer.Option(
            help="End-of-turn detector for semantic_vad: smart-turn (an extra), or a plugin's; none by default."
        ),
    ] = None,
    transcriber: Transcriber = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option("--served-model-name", metavar="NAME", help="A further name for the model; may be repeated."),
    ] = None,
    authenticator: Annotated[
        str | None, typer.Option(help="Authenticator of a plugin's, which decides who may in.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="A web origin whose pages may use the server, beside this machine's; may be repeated; * is any.",
        ),
    ] = None,
    disconnect_grace_seconds: Annotated[
        float, typer.Option(help="How long a session waits for a client that was cut off.", min=0)
    ] = Lifetime().disconnect_grace_s,
    idle_ttl_seconds: Annotated[
        float, typer.Option(help="How long after its client's last event a session ends; inf is never.", min=1)
    ] = Lifetime().idle_ttl_s,
    journal_events: Annotated[
        int, typer.Option(help="Most events of a session that are kept for a client that comes back.", min=0)
    ] = Lifetime().journal_events,
    journal_bytes: Annotated[int, typer.Option(help="Most bytes of them.", min=0)] = Lifetime().journal_bytes,
    drain_seconds: Annotated[
        float, typer.Option(help="How long running sessions get to end when the server is told to stop.", min=0)
    ] = 10.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    log_format: Annotated[
        LogFormat, typer.Option(help="text for people, or json: one object a line, with the session's id.")
    ] = LogFormat.TEXT,
    trace: Annotated[
        bool, typer.Option("--trace", help="Send a trace of each turn through OpenTelemetry (an extra: tracing).")
    ] = False,
) -> None:
    """Serve one model until SIGTERM or Ctrl-C."""
    plugins: PluginHost = context.obj
    set_format(log_format)
    _set_log_level(log_level)
    _check_access(plugins, host, api_key, authenticator, allow_unauthenticated)
    lifetime = Lifetime(
        disconnect_grace_s=disconnect_grace_seconds,
        idle_ttl_s=idle_ttl_seconds,
        journal_events=journal_events,
        journal_bytes=journal_bytes,
    )
    try:
        settings = read_settings(deploy, assignments or [], os.environ)
        served = prepare(plugins, model, lambda spec: resolve(spec, settings, profile), aliases=served_model_name or ())
        tracer = start_tracing() if trace else None
        engine = EngineSettings(
            max_sessions=max_sessions,
            detector=detector,
            end_of_turn=end_of_turn,
            transcriber=transcriber,
            lifetime=lifetime,
        )
        listener = listen(host, port)
    except (PluginError, DeployError, ModelUnavailable, ListenError, TracingUnavailable) as exc:
        _stop(str(exc))
    front = _Front(
        listener=listener,
        api_key=api_key,
        authenticator=plugins.authenticators[authenticator] if authenticator is not None else None,
        allow_origins=tuple(allow_origin or ()),
        drain_s=drain_seconds,
        observers=() if tracer is None else (tracer,),
    )
    with listener:
        try:
            run(_serve(served, plugins=plugins, settings=engine, front=front))
        except (ModelUnavailable, StageStartError) as exc:
            _stop(str(exc))


@app.command()
def plan(  # noqa: PLR0917 - the parameters are the command's options
    context: typer.Context,
    model: Model = None,
    max_sessions: MaxSessions = None,
    profile: Profile = None,
    deploy: Deploy = None,
    assignments: Assignments = None,
    transcriber: Transcriber = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, with every setting.")] = False,
) -> None:
    """Show the stages that serve would start, their devices and memory; nothing is loaded."""
    plugins: PluginHost = context.obj
    try:
        settings = read_settings(deploy, assignments or [], os.environ)
        served = prepare(plugins, model, lambda spec: resolve(spec, settings, profile))
        if transcriber is not None:
            served = with_transcriber(served, plugins, transcriber)
        limit = session_limit(served, max_sessions)
        known = profiles(served.spec)
        check(served.plan, plugins.runtimes)
    except (PluginError, DeployError, ModelUnavailable, StageStartError) as exc:
        _stop(str(exc))
    planned = describe(served, package=_origin(plugins, served.spec.id), profile=profile, max_sessions=limit)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(planned)).decode())
        return
    console = Console()
    show(planned, console)
    for name, purpose in known.items():
        console.print(f"profile {name}: {purpose}", markup=False)


def _origin(plugins: PluginHost, model_id: str) -> str:
    """The package that a model comes from, with its version."""
    return next(report.origin for report in plugins.reports if model_id in report.models)


@app.command()
def models(context: typer.Context) -> None:
    """List the installed model packages, what they claim, and the broken ones with the cause."""
    plugins: PluginHost = context.obj
    table = Table("Model", title="Models")
    table.add_column("Package", no_wrap=True)
    for title in ("Serves", "Can", "Summary"):
        table.add_column(title)
    for report in plugins.reports:
        for model_id in report.models:
            if report.broken:
                table.add_row(model_id, report.origin, "-", "-", f"[red]broken:[/red] {_plain(report.cause)}")
            else:
                spec = plugins.models[model_id]
                name = f"{model_id} (default)" if spec.embedded else model_id
                table.add_row(
                    name, report.origin, _plain(spec.claims_text), _plain(_abilities(spec)), _plain(spec.summary)
                )
    console = Console()
    if table.row_count:
        console.print(table)
    else:
        console.print("No model package is installed; install one, for example: pip install model-cascade")
    for report in plugins.broken:
        if not report.models:
            console.print(_broken_line(report))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """The server's side that faces its clients, and those who look on."""

    listener: socket.socket
    api_key: str | None
    authenticator: AuthenticatorSpec | None
    allow_origins: tuple[str, ...]
    drain_s: float
    observers: tuple[SessionObserverSpec, ...] = ()


def _check_access(
    plugins: PluginHost, host: str, api_key: str | None, authenticator: str | None, allow_unauthenticated: bool
) -> None:
    """Let no server start that lets others in than its operator means to."""
    if api_key is not None and not api_key.strip():
        _stop("the key is empty: set a real one, or leave --api-key (or DUPLEX_API_KEY) out")
    if authenticator is not None and authenticator not in plugins.authenticators:
        known = ", ".join(sorted(plugins.authenticators)) or "none"
        _stop(f"there is no authenticator {authenticator!r}; installed are: {known}")
    guarded = api_key is not None or authenticator is not None
    if not guarded and not allow_unauthenticated and not is_loopback(host):
        _stop(
            f"{host} can be reached from other machines: set --api-key or --authenticator, or say --allow-unauthenticated"
        )


async def _serve(served: ServedModel, *, plugins: PluginHost, settings: EngineSettings, front: _Front) -> None:
    """Load what decides who may in, then the model, then serve it."""
    authenticator = await _authenticator(front.authenticator)
    async with DuplexOmni.start(served, plugins=plugins, settings=settings, observers=front.observers) as engine:

        def ready() -> None:
            settle_memory()
            typer.echo(f"Listening on {address_of(front.listener)} (model {served.name})")

        app = create_app(engine, api_key=front.api_key, authenticator=authenticator, allow_origins=front.allow_origins)
        await serve_until_told(engine, app, front.listener, drain_s=front.drain_s, on_ready=ready)


async def _authenticator(spec: AuthenticatorSpec | None) -> Authenticator | None:
    """The chosen authenticator, made.

    Raises:
        ModelUnavailable: it could not be made.
    """
    if spec is None:
        return None
    try:
        return await asyncio.to_thread(spec.create)
    except Exception as exc:
        raise ModelUnavailable(f"the authenticator {spec.id} did not start: {exc}") from exc


def _add_subcommand(spec: SubcommandSpec) -> None:
    """Add a plugin's sub-command, which gets every word after its name."""
    if spec.id in OWN_COMMANDS:
        logging.getLogger(__name__).warning("a plugin's sub-command %s is left out: the server has its own", spec.id)
        return

    def run(context: typer.Context) -> None:
        raise typer.Exit(spec.run(context.args))

    takes_all = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(spec.id, help=spec.summary, context_settings=takes_all)(run)


def _abilities(spec: ModelSpec) -> str:
    """What sessions with a model can do while nothing is set, for people."""
    try:
        able = spec.capabilities(spec.deploy_model())
    except ValueError:  # pydantic's is one: there are settings that it cannot do without
        return "depends on its deploy settings"
    says = f"says {' or '.join(modality.value for modality in able.output_modalities)}"
    voices = f"voices {', '.join(able.voices)}" if able.voices else ""
    sees = "sees images" if able.image_input or able.video_input else ""
    flags = {
        "takes text": able.text_input,
        "transcribes": able.input_transcription,
        "tools": able.tools,
        "chat completions": able.chat,
    }
    return "; ".join(filter(None, (says, voices, sees, *(name for name, there in flags.items() if there))))


def _broken_line(report: PluginReport) -> str:
    return f"[red]broken:[/red] plugin {report.name} of {report.origin}: {_plain(report.cause)}"


def _plain(text: str | None) -> str:
    """``text`` with nothing in it that the terminal would take for markup."""
    return (text or "").replace("[", r"\[")


def _set_log_level(name: str) -> None:
    level = logging.getLevelNamesMapping().get(name.upper())
    if level is None:
        _stop(f"there is no log level {name!r}; use debug, info, warning or error")
    logging.getLogger().setLevel(level)


def _stop(sentence: str) -> NoReturn:
    """End the process with one sentence on stderr."""
    typer.echo(f"duplex-server: {sentence}", err=True)
    raise typer.Exit(1)
