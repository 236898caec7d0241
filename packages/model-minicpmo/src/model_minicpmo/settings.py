"""The deploy settings: where each stage runs, how much it holds, and what sessions begin with. Validated before anything loads.

Owns the names, the defaults and what fits together. Read by the server from the profiles in `profiles/`, the deploy file, `--set`
and the environment.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

DEFAULT_PROMPT = "Streaming Omni Conversation."
"""The system prompt of the vendor's demo."""
GIB = 1024**3


def _listed(value: object) -> object:
    """A list that somebody wrote as text: one name, or several with commas between them."""
    return [name for name in map(str.strip, value.split(",")) if name] if isinstance(value, str) else value


Devices = Annotated[tuple[str, ...], pydantic.BeforeValidator(_listed)]


class StageSettings(pydantic.BaseModel):
    """Where one stage runs.

    Attributes:
        devices: a device for each replica, counted round; none leaves it to the runtime.
        replicas: how many processes hold the stage.
        memory_gib: memory on the device that a replica takes, for `duplex-server plan`.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    devices: Devices = ()
    replicas: int = pydantic.Field(default=1, ge=1, le=64)
    memory_gib: float | None = pydantic.Field(default=None, gt=0.0)

    @property
    def memory_bytes(self) -> int | None:
        """The same in bytes."""
        return None if self.memory_gib is None else int(self.memory_gib * GIB)


class ThinkerSettings(StageSettings):
    """The language model's engine.

    Attributes:
        max_model_len: positions of one session's context; a session of ten minutes under a window needs far fewer.
        dtype: type of weights and activations.
        engine_args: further arguments of vLLM's engine, as they are.
    """

    max_model_len: int = pydantic.Field(default=8192, ge=256)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    engine_args: dict[str, Any] = {}


class MiniCPMOSettings(pydantic.BaseModel):
    """The deploy settings of MiniCPM-o.

    Attributes:
        sessions: sessions at a time; the thinker keeps a sequence slot for each.
        chats: chat requests at a time, beside them.
        senses: hearing and seeing.
        thinker: the language model.
        talker: words to audio codes.
        voice: audio codes to sound.
        instructions: the system prompt, unless a session says otherwise.
        turn_units: seconds that one turn of the model may have; a longer one is closed, and its response is `incomplete`.
        flow_steps: steps of the flow for each piece of sound; 10 is published, 5 is the vendor's demo.
        dtype: type of the weights of all stages but the thinker.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    sessions: int = pydantic.Field(default=4, ge=1, le=1024)
    chats: int = pydantic.Field(default=1, ge=0, le=256)
    senses: StageSettings = StageSettings()
    thinker: ThinkerSettings = ThinkerSettings()
    talker: StageSettings = StageSettings()
    voice: StageSettings = StageSettings()
    instructions: str = DEFAULT_PROMPT
    turn_units: int = pydantic.Field(default=120, ge=1, le=3600)
    flow_steps: int = pydantic.Field(default=10, ge=1, le=50)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
