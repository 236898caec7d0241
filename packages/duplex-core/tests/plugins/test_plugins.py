"""Each plugin loads alone, whatever is wrong with the others, and nothing that is wrong is silent."""

from __future__ import annotations

import logging
import types
from collections.abc import Callable

import pytest

import duplex_core
from duplex_core.hookspecs import hookimpl
from duplex_core.plugins import PluginError, load_plugins
from duplex_core.spec import Checkpoint
from duplex_core.subcommands import SubcommandSpec

Install = Callable[..., str]
"""The fixture ``install``: distribution, source of its plugin module, and what else is in its metadata."""

GOOD = """
@hookimpl
def duplex_register_models():
    return [model("good", embedded=True)]
"""


def test_without_plugins_there_is_nothing_and_no_error(install: Install) -> None:
    host = load_plugins()
    assert (host.models, host.detectors, host.observers, host.runtimes, host.commands) == ({}, {}, {}, {}, {})
    assert (host.end_of_turn_detectors, host.transcribers) == ({}, {})
    assert host.reports == ()


def test_an_installed_plugin_is_found_and_reported(install: Install) -> None:
    module = install("model-good", GOOD, version="2.5", name="good-plugin")
    host = load_plugins()
    (report,) = host.reports
    assert (report.name, report.distribution, report.version) == ("good-plugin", "model-good", "2.5")
    assert (report.target, report.cause, report.error, report.models) == (module, None, None, ("good",))
    assert not report.broken
    assert host.broken == ()
    assert host.models["good"].summary == "a model"


BROKEN = {
    "import": ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    "syntax": ("def f(:", "SyntaxError"),
    "error at import": ("1 / 0", "ZeroDivisionError: division by zero"),
    "exit at import": ("raise SystemExit('stop')", "SystemExit: stop"),
    "raising hook": (
        "@hookimpl\ndef duplex_register_models():\n    raise OSError('no disk')",
        "OSError: no disk",
    ),
    "nothing returned": (
        "@hookimpl\ndef duplex_register_models():\n    pass",
        "duplex_register_models returned NoneType; it must return a list of ModelSpec",
    ),
    "one returned": (
        "@hookimpl\ndef duplex_register_models():\n    return model('x')",
        "duplex_register_models returned ModelSpec; it must return a list of ModelSpec",
    ),
    "wrong members": (
        "@hookimpl\ndef duplex_register_turn_detectors():\n    return [model('x')]",
        "duplex_register_turn_detectors returned a list with ModelSpec in it; each must be TurnDetectorSpec",
    ),
    "bad id": (
        "@hookimpl\ndef duplex_register_models():\n    return [model('two words')]",
        "duplex_register_models returned the id 'two words'; an id is a name without spaces",
    ),
    "no id": ("@hookimpl\ndef duplex_register_models():\n    return [model('')]", "returned the id ''"),
    "id of another type": (
        "@hookimpl\ndef duplex_register_models():\n    return [model('x', id=5)]",
        "returned the id 5",
    ),
    "unknown hook": ("@hookimpl\ndef duplex_register_model():\n    return []", "unknown hook 'duplex_register_model'"),
    "unmarked hook": ("def duplex_register_models():\n    return []", "duplex_register_models is not marked"),
    "no hook": ("x = 1", "it implements no hook"),
    "unknown argument": ("@hookimpl\ndef duplex_register_models(engine):\n    return []", "engine"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plugin_is_reported_and_the_others_load(
    fault: str, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    source, cause = BROKEN[fault]
    install("model-bad", source, version="0.3")
    install("a-good-model", GOOD)
    with caplog.at_level(logging.WARNING):
        host = load_plugins()
    assert list(host.models) == ["good"]
    (report,) = host.broken
    assert (report.name, report.distribution, report.version) == ("model-bad", "model-bad", "0.3")
    assert report.cause is not None
    assert cause in report.cause
    assert isinstance(report.error, BaseException)
    assert "model-bad 0.3 is broken" in caplog.text


def test_the_names_of_the_hooks_are_told_to_whom_got_one_wrong(install: Install) -> None:
    install("model-bad", BROKEN["unknown hook"][0])
    (report,) = load_plugins().reports
    assert "duplex_register_models, duplex_register_turn_detectors" in (report.cause or "")


def test_an_entry_point_that_names_nothing_is_reported(install: Install) -> None:
    install("model-bad", "", target="no_such_module_at_all:plugin")
    assert "ModuleNotFoundError" in (load_plugins().reports[0].cause or "")


def test_an_interrupt_is_not_a_broken_plugin(install: Install) -> None:
    install("model-bad", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_plugins()


@pytest.mark.parametrize(
    ("requires", "fits"),
    [
        ("duplex-core>=99", False),
        ("duplex_core >=0.0.1,<0.0.2", False),
        ("Duplex.Core==0.0.1", False),
        (f"duplex-core=={duplex_core.__version__}", True),
        ("duplex-core", True),
        ("duplex-core>=99; python_version<'3'", True),
        ("duplex-core>=99; extra=='later'", True),
        ("something-else>=99", True),
        ("???", True),
    ],
)
def test_a_plugin_for_another_core_is_reported_and_not_imported(requires: str, fits: bool, install: Install) -> None:
    install("model-good", GOOD if fits else "raise AssertionError('imported')", requires=requires)
    (report,) = load_plugins().reports
    if fits:
        assert report.cause is None
    else:
        assert report.cause is not None
        assert report.cause.startswith("it needs duplex-core")
        assert report.cause.endswith(f"installed is {duplex_core.__version__}")


KINDS = {
    "model": GOOD,
    "turn detector": """
from duplex_core.detection import TurnDetectorSpec
@hookimpl
def duplex_register_turn_detectors():
    return [TurnDetectorSpec(id="good", summary="s", create=object)]
""",
    "end-of-turn detector": """
from duplex_core.detection import EndOfTurnSpec
@hookimpl
def duplex_register_end_of_turn_detectors():
    return [EndOfTurnSpec(id="good", summary="s", create=object)]
""",
    "transcriber": """
from duplex_core.stages import StageSpec
from duplex_core.transcribing import TranscriberSpec
@hookimpl
def duplex_register_transcribers():
    return [TranscriberSpec(id="good", summary="s", stage=StageSpec(name="n", factory="f:f"))]
""",
    "session observer": """
from duplex_core.observers import SessionObserverSpec
@hookimpl
def duplex_register_session_observers():
    return [SessionObserverSpec(id="good", summary="s", create=object)]
""",
    "stage runtime": """
from duplex_core.stages import StageRuntimeSpec
@hookimpl
def duplex_register_stage_runtimes():
    return [StageRuntimeSpec(id="good", summary="s", start=None)]
""",
    "sub-command": """
from duplex_core.subcommands import SubcommandSpec
@hookimpl
def duplex_register_commands():
    return [SubcommandSpec(id="good", summary="s", run=len)]
""",
}


@pytest.mark.parametrize("kind", KINDS)
def test_two_packages_with_one_id_are_an_error_that_names_both(kind: str, install: Install) -> None:
    install("first", KINDS[kind], version="1.1")
    install("second", KINDS[kind], version="2.2")
    with pytest.raises(PluginError, match=rf"first 1\.1 and second 2\.2 both register the {kind} 'good'"):
        load_plugins()


def test_one_id_for_two_kinds_is_fine(install: Install) -> None:
    for number, source in enumerate(KINDS.values()):
        install(f"plugin-{number}", source)
    host = load_plugins()
    tables = (host.models, host.detectors, host.observers, host.runtimes, host.commands)
    assert [list(table) for table in tables] == [["good"]] * 5


def test_a_plugin_that_registers_one_id_twice_is_an_error(install: Install) -> None:
    install("twice", "@hookimpl\ndef duplex_register_models():\n    return [model('x'), model('x')]")
    with pytest.raises(PluginError, match="both register the model 'x'"):
        load_plugins()


def test_a_broken_plugins_id_collides_with_nobodys(install: Install) -> None:
    install("first", GOOD)
    install("second", GOOD + "@hookimpl\ndef duplex_register_commands():\n    raise OSError\n")
    assert list(load_plugins().models) == ["good"]


def test_plugins_can_be_handed_over(install: Install) -> None:
    class Own:
        @hookimpl
        def duplex_register_commands(self) -> tuple[SubcommandSpec, ...]:
            return (SubcommandSpec(id="own", summary="s", run=len),)

    module = types.ModuleType("handed_over")
    install("model-good", GOOD)
    host = load_plugins([Own(), module])
    assert list(host.commands) == ["own"]
    assert list(host.models) == ["good"]
    assert [(report.name, report.distribution, report.broken) for report in host.reports] == [
        ("Own", "", False),
        ("handed_over", "", True),
        ("model-good", "model-good", False),
    ]


# -- the choice of a model ---------------------------------------------------------------------------------------------


def named(name: str, **config: object) -> Checkpoint:
    return Checkpoint(name=name, config=config)


def plugin_of(*models: str) -> str:
    return f"@hookimpl\ndef duplex_register_models():\n    return [{', '.join(models)}]"


def test_the_model_is_chosen_by_id_then_by_claim_then_for_being_embedded(install: Install) -> None:
    install("models", plugin_of("model('a')", "model('b', embedded=True)", "model('c')"))
    host = load_plugins()
    assert host.select_model(named("a", model_type="c")).id == "a"
    assert host.select_model(named("some/folder", model_type="c")).id == "c"
    assert host.select_model().id == "b"


def test_a_checkpoint_that_nobody_claims_is_an_error_that_lists_what_is_installed(install: Install) -> None:
    install("models", plugin_of("model('a')"))
    install("model-bad", "1 / 0")
    with pytest.raises(PluginError) as caught:
        load_plugins().select_model(named("some/folder", model_type="z"))
    message = str(caught.value)
    assert "no installed model serves some/folder" in message
    assert "a (model_type a)" in message
    assert "model-bad 1.0 is broken: ZeroDivisionError" in message


def test_a_checkpoint_that_several_claim_is_an_error(install: Install) -> None:
    install("models", plugin_of("model('a', claims=lambda c: True)", "model('b', claims=lambda c: True)"))
    with pytest.raises(PluginError, match="several installed models claim some/folder: a, b; name the one to serve"):
        load_plugins().select_model(named("some/folder"))


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], "no model package is installed"),
        (["model('a')"], "no installed model package brings its own weights"),
        (["model('a', embedded=True)", "model('b', embedded=True)"], "several could be the default: a, b; name one"),
    ],
)
def test_no_name_and_no_one_default_is_an_error(models: list[str], message: str, install: Install) -> None:
    if models:
        install("models", plugin_of(*models))
    with pytest.raises(PluginError, match=message):
        load_plugins().select_model()


@pytest.mark.parametrize("asked", ["model-bad", "Model_Bad", "the-entry", "lost"])
def test_a_broken_plugin_that_is_chosen_is_fatal_with_its_cause(asked: str, install: Install) -> None:
    install("models", plugin_of("model('a', claims=lambda c: True)"))
    lost = plugin_of("model('lost')") + "\n@hookimpl\ndef duplex_register_commands():\n    raise OSError('no disk')\n"
    install("model-bad", lost, name="the-entry")
    host = load_plugins()
    assert host.broken[0].models == ("lost",)
    with pytest.raises(PluginError, match=r"is provided by model-bad 1\.0, which is broken: OSError: no disk"):
        host.select_model(named(asked))


def test_a_broken_plugin_that_nobody_chose_harms_nothing(install: Install) -> None:
    install("models", plugin_of("model('a', embedded=True)"))
    install("model-bad", "1 / 0")
    host = load_plugins()
    assert host.select_model().id == "a"
    assert host.select_model(named("a")).id == "a"


def test_the_cause_is_told_when_the_default_is_what_broke(install: Install) -> None:
    install("model-cascade", "1 / 0")
    with pytest.raises(PluginError, match=r"model-cascade 1\.0 is broken: ZeroDivisionError"):
        load_plugins().select_model()


def test_a_model_that_fails_when_asked_is_passed_over(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install(
        "models",
        plugin_of("model('a', claims=lambda c: c.config['model_type'] == 1)", "model('b', claims=lambda c: True)"),
    )
    with caplog.at_level(logging.WARNING):
        assert load_plugins().select_model(named("some/folder")).id == "b"
    assert "the model a failed when asked about some/folder" in caplog.text
    assert "KeyError" in caplog.text
