"""The GPU models that VOLT knows, and how the many ways to write one come to its one slug.

A name is read word by word: vendor words are dropped, a size such as `80GB` and a form such as `SXM4` or `PCIe` are
taken out, and what remains, run together, is looked up among the aliases. A word that is left over makes another name
(`4090 Laptop`, `3090 Ti`): nothing unknown is passed over. Sizes are nominal: what a driver reports of a card of
80 GB, less what the card keeps for itself, is 80.
"""

import re
import unicodedata
from difflib import get_close_matches
from typing import Literal

from volt.contracts.errors import CHOICES_MAX, Reason, Refused
from volt.contracts.messages import Value

GPU_NAME_CHARS_MAX = 96
GPU_MEMORY_MIB_MAX = 4 * 1024 * 1024
MIB_PER_GIB = 1024
COUNT_DIGITS_MAX = 6

# Drivers report less than the nominal size, the most so with ECC on GDDR6: 46,068 MiB of an L40S, 15,109 of a T4.
_REPORTED_PERCENT_MIN = 91
_REPORTED_PERCENT_MAX = 102

Interface = Literal["sxm", "pcie", "oam", "superchip"]


class GpuModel(Value, frozen=True, kw_only=True):
    """One model. `form` is the word that tells it from the model of the same name that goes without one."""

    slug: str
    memory_gib: int
    interface: Interface
    aliases: tuple[str, ...]
    form: str = ""

    @property
    def memory_mib(self) -> int:
        """Nominal memory."""
        return self.memory_gib * MIB_PER_GIB


def _model(slug: str, memory_gib: int, interface: Interface, *aliases: str, form: str = "") -> GpuModel:
    return GpuModel(slug=slug, memory_gib=memory_gib, interface=interface, aliases=aliases, form=form)


# Aliases are lower case and without separators, vendors, sizes and forms, unless the driver's own name has an odd one.
CATALOGUE: tuple[GpuModel, ...] = (
    _model("b300-288gb", 288, "sxm", "b300", "hgxb300"),
    _model("b200-180gb", 180, "sxm", "b200", "hgxb200"),
    _model("gh200-96gb", 96, "superchip", "gh200", "gh200480gb", "gracehopper", "gracehoppergh200"),
    _model("h200-141gb", 141, "sxm", "h200", "hgxh200"),
    _model("h200-nvl-141gb", 141, "pcie", "h200", form="nvl"),
    _model("h100-80gb", 80, "sxm", "h100", "hgxh100", "h100mega"),
    _model("h100-pcie-80gb", 80, "pcie", "h100", form="pcie"),
    _model("h100-nvl-94gb", 94, "pcie", "h100", form="nvl"),
    _model("h800-80gb", 80, "sxm", "h800"),
    _model("h20-96gb", 96, "sxm", "h20"),
    _model("a100-40gb", 40, "sxm", "a100"),
    _model("a100-80gb", 80, "sxm", "a100"),
    _model("a100-pcie-40gb", 40, "pcie", "a100", form="pcie"),
    _model("a100-pcie-80gb", 80, "pcie", "a100", form="pcie"),
    _model("a800-80gb", 80, "sxm", "a800"),
    _model("l4-24gb", 24, "pcie", "l4"),
    _model("l40-48gb", 48, "pcie", "l40"),
    _model("l40s-48gb", 48, "pcie", "l40s"),
    _model("a2-16gb", 16, "pcie", "a2"),
    _model("a10-24gb", 24, "pcie", "a10"),
    _model("a10g-24gb", 24, "pcie", "a10g"),
    _model("a30-24gb", 24, "pcie", "a30"),
    _model("a40-48gb", 48, "pcie", "a40"),
    _model("v100-16gb", 16, "sxm", "v100"),
    _model("v100-32gb", 32, "sxm", "v100"),
    _model("v100-pcie-16gb", 16, "pcie", "v100", form="pcie"),
    _model("v100-pcie-32gb", 32, "pcie", "v100", form="pcie"),
    _model("v100s-32gb", 32, "pcie", "v100s"),
    _model("p100-16gb", 16, "sxm", "p100"),
    _model("p100-pcie-16gb", 16, "pcie", "p100", form="pcie"),
    _model("p40-24gb", 24, "pcie", "p40"),
    _model("t4-16gb", 16, "pcie", "t4"),
    _model("rtx-a4000-16gb", 16, "pcie", "rtxa4000", "a4000", "quadrortxa4000"),
    _model("rtx-a5000-24gb", 24, "pcie", "rtxa5000", "a5000", "quadrortxa5000"),
    _model("rtx-a6000-48gb", 48, "pcie", "rtxa6000", "a6000", "quadrortxa6000"),
    _model("quadro-rtx-6000-24gb", 24, "pcie", "quadrortx6000", "rtx6000"),
    _model("quadro-rtx-8000-48gb", 48, "pcie", "quadrortx8000", "rtx8000"),
    _model("rtx-4000-ada-20gb", 20, "pcie", "rtx4000ada", "4000ada", "rtx4000adageneration"),
    _model("rtx-5000-ada-32gb", 32, "pcie", "rtx5000ada", "5000ada", "rtx5000adageneration"),
    _model("rtx-6000-ada-48gb", 48, "pcie", "rtx6000ada", "6000ada", "rtx6000adageneration", "rtx6000"),
    _model(
        "rtx-pro-6000-96gb",
        96,
        "pcie",
        "rtxpro6000",
        "pro6000",
        "rtx6000pro",
        "rtxpro6000ws",
        "rtxpro6000se",
        "rtxpro6000blackwell",
        "rtxpro6000blackwellserveredition",
        "rtxpro6000blackwellworkstationedition",
        "rtxpro6000blackwellmaxqworkstationedition",
    ),
    _model("rtx-2080-ti-11gb", 11, "pcie", "rtx2080ti", "2080ti"),
    _model("rtx-3080-10gb", 10, "pcie", "rtx3080", "3080"),
    _model("rtx-3080-12gb", 12, "pcie", "rtx3080", "3080"),
    _model("rtx-3080-ti-12gb", 12, "pcie", "rtx3080ti", "3080ti"),
    _model("rtx-3090-24gb", 24, "pcie", "rtx3090", "3090"),
    _model("rtx-3090-ti-24gb", 24, "pcie", "rtx3090ti", "3090ti"),
    _model("rtx-4070-ti-12gb", 12, "pcie", "rtx4070ti", "4070ti"),
    _model("rtx-4080-16gb", 16, "pcie", "rtx4080", "4080"),
    _model("rtx-4080-super-16gb", 16, "pcie", "rtx4080super", "4080super", "rtx4080s", "4080s"),
    _model("rtx-4090-24gb", 24, "pcie", "rtx4090", "4090"),
    _model("rtx-4090-d-24gb", 24, "pcie", "rtx4090d", "4090d"),
    _model("rtx-5080-16gb", 16, "pcie", "rtx5080", "5080"),
    _model("rtx-5090-32gb", 32, "pcie", "rtx5090", "5090"),
    _model("rtx-5090-d-32gb", 32, "pcie", "rtx5090d", "5090d"),
    _model("mi210-64gb", 64, "pcie", "mi210"),
    _model("mi250x-128gb", 128, "oam", "mi250x"),
    _model("mi300x-192gb", 192, "oam", "mi300x"),
    _model("mi325x-256gb", 256, "oam", "mi325x"),
    _model("mi355x-288gb", 288, "oam", "mi355x"),
)

BY_SLUG: dict[str, GpuModel] = {model.slug: model for model in CATALOGUE}

_BY_ALIAS: dict[str, tuple[GpuModel, ...]] = {
    alias: tuple(model for model in CATALOGUE if alias in model.aliases)
    for alias in (alias for model in CATALOGUE for alias in model.aliases)
}
_BY_SPELLING = _BY_ALIAS | {model.slug: (model,) for model in CATALOGUE}
_VENDOR_WORDS = frozenset({"nvidia", "corporation", "geforce", "tesla", "amd", "instinct", "gpu"})
_FORM = re.compile(r"(?P<before>.*?)(?P<form>sxm|pcie|nvl|oam)\d?")
_SIZE = re.compile(r"(?P<gib>\d{1,4})(?:gb|gib|g)")
_MEMORY_KIND = re.compile(r"(?:hbm|gddr)\d?[ex]?")


def resolve(name: str, memory_mib: int = 0) -> GpuModel:
    """The model that a person, a driver or a slug names; `memory_mib` is what the driver reports, 0 if unknown.

    Raises Refused with `unknown_gpu_model` or `ambiguous_gpu_model`, and the models that may be meant as choices.
    """
    if len(name) > GPU_NAME_CHARS_MAX:
        raise _unknown(name, ())
    named = _named(name)
    fitting = [model for model in named.models if _fits(model, named, memory_mib)]
    plain = [model for model in fitting if not model.form]
    chosen = plain if plain and not named.forms else fitting
    if not chosen:
        raise _unknown(name, named.models)
    if len(chosen) > 1:
        raise _ambiguous(name, chosen)
    return chosen[0]


class Ask(Value, frozen=True, kw_only=True):
    """GPUs as people ask for them: any of these models, how many if that is said, of how much memory at least."""

    names: tuple[str, ...]
    count: int | None = None
    memory_mib: int = 0


def parse_ask(text: str) -> Ask:
    """Reads `NAME`, `NAME:COUNT` or `NAME:COUNT:MEMORY`, where NAME may be several with commas and MEMORY is like 80GB.

    What the names mean is said by `resolve`. Raises Refused.
    """
    names, _, rest = text.partition(":")
    count, _, memory = rest.partition(":")
    sized = _SIZE.fullmatch(memory.strip().casefold()) if memory else None
    is_counted = not count or (count.isascii() and count.isdigit() and len(count) <= COUNT_DIGITS_MAX)
    listed = tuple(name.strip() for name in names.split(","))
    if not all(listed) or not is_counted or (rest and not count) or (memory and sized is None):
        message = f"{_seen(text)!r} asks for no GPUs; write it like h100, h100,a100-80gb or h100:8:80GB"
        raise Refused(Reason(code="invalid_gpu_ask", message=message, field="gpu", seen=_seen(text)))
    memory_mib = int(sized["gib"]) * MIB_PER_GIB if sized else 0
    return Ask(names=listed, count=int(count) if count else None, memory_mib=memory_mib)


class _Named(Value, frozen=True, kw_only=True):
    """What a name says: whose aliases it is, in which forms, and of what size if it says so."""

    models: tuple[GpuModel, ...]
    forms: frozenset[str]
    sizes_gib: frozenset[int]


def _named(name: str) -> _Named:
    words = [word for word in _words(name) if word not in _VENDOR_WORDS and not _MEMORY_KIND.fullmatch(word)]
    odd = "".join(words)
    if odd in _BY_ALIAS:
        return _Named(models=_BY_ALIAS[odd], forms=frozenset(), sizes_gib=frozenset())
    rest: list[str] = []
    forms: set[str] = set()
    sizes_gib: set[int] = set()
    for word in words:
        if form := _FORM.fullmatch(word):
            rest.append(form["before"])
            forms.add(form["form"])
        elif size := _SIZE.fullmatch(word):
            sizes_gib.add(int(size["gib"]))
        else:
            rest.append(word)
    models = _BY_ALIAS.get("".join(rest), ())
    return _Named(models=models, forms=frozenset(forms), sizes_gib=frozenset(sizes_gib))


def _words(name: str) -> list[str]:
    """Lower-case runs of letters and digits; a number that stands before its unit is one word with it."""
    text = unicodedata.normalize("NFKC", name.replace("™", "").replace("®", "")).casefold()
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=\d)\s+(?=(?:gb|gib)\b)", "", text))


def _fits(model: GpuModel, named: _Named, memory_mib: int) -> bool:
    """Whether the model has the sizes and forms that are named, and the memory that is reported."""
    stated = named.forms - {model.interface}
    if not stated <= {model.form} or (named.forms and model.form and model.form not in named.forms):
        return False
    if not named.sizes_gib <= {model.memory_gib}:
        return False
    reported_percent = memory_mib * 100 // model.memory_mib
    return memory_mib == 0 or _REPORTED_PERCENT_MIN <= reported_percent <= _REPORTED_PERCENT_MAX


def _unknown(name: str, near: tuple[GpuModel, ...]) -> Refused:
    choices = [model.slug for model in near] or _close(name)
    hint = f"did you mean {', '.join(choices[:CHOICES_MAX])}?" if choices else "write one such as h100-80gb"
    return _refused("unknown_gpu_model", f"no GPU model is called {_seen(name)!r}; {hint}", name, choices)


def _ambiguous(name: str, chosen: list[GpuModel]) -> Refused:
    choices = [model.slug for model in chosen]
    message = f"{_seen(name)!r} names several GPU models; say which: {', '.join(choices[:CHOICES_MAX])}"
    return _refused("ambiguous_gpu_model", message, name, choices)


def _refused(code: str, message: str, name: str, choices: list[str]) -> Refused:
    seen = _seen(name)
    return Refused(Reason(code=code, message=message, field="gpu", seen=seen, choices=tuple(choices[:CHOICES_MAX])))


def _seen(name: str) -> str:
    return name if len(name) <= GPU_NAME_CHARS_MAX else name[: GPU_NAME_CHARS_MAX - 1] + "…"


def _close(name: str) -> list[str]:
    """Slugs whose own spelling or whose aliases look like the name, or are one of its words."""
    if len(name) > GPU_NAME_CHARS_MAX:
        return []
    words = [word for word in _words(name) if word not in _VENDOR_WORDS]
    alike = get_close_matches("".join(words), _BY_SPELLING, n=CHOICES_MAX, cutoff=0.6)
    models = [model for one in [*alike, *words] for model in _BY_SPELLING.get(one, ())]
    return list(dict.fromkeys(model.slug for model in models))
