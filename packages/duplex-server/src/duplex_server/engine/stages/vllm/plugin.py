"""Registers a model package's class with vLLM in whichever process vLLM starts.

Called by vLLM through the entry point ``vllm.general_plugins``, in the worker process and in every process of its engine; does
nothing in a process that is not a stage's. Must import nothing heavy before it knows that there is something to register.
"""

from __future__ import annotations

import importlib
import os

VARIABLE = "DUPLEX_VLLM_ARCHITECTURE"
"""``Name=package.module:Class``: set by :mod:`.platform` before the engine starts, inherited by the engine's processes."""


def register() -> None:
    """Register the class that the environment names, if it names one.

    Raises:
        ImportError, AttributeError: it names nothing.
    """
    name, _, path = os.environ.get(VARIABLE, "").partition("=")
    if not name:
        return
    from vllm import ModelRegistry  # noqa: PLC0415 - every process that has vLLM calls this, and most register nothing

    module, _, attribute = path.partition(":")
    ModelRegistry.register_model(name, getattr(importlib.import_module(module), attribute))
