"""However a GPU is written, it comes to one slug, or to an error that names the close ones."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volt.contracts.errors import CHOICES_MAX, Reason, Refused
from volt.contracts.gpus import BY_SLUG, CATALOGUE, GPU_NAME_CHARS_MAX, GpuModel, resolve
from volt.contracts.ids import is_id

MODELS = st.sampled_from(CATALOGUE)

# What people, drivers and other catalogues write.
SPELLINGS = {
    "rtx-4090-24gb": (
        "NVIDIA RTX 4090",
        "NVIDIA GeForce RTX 4090",
        "rtx4090",
        "RTX-4090",
        "geforce rtx 4090 ",
        "4090",
        "RTX_4090",
        "RTX 4090 24GB",
        "NVIDIA® GeForce RTX™ 4090",
    ),
    "a100-80gb": ("A100_80GB", "a100-80gb", "NVIDIA A100-SXM4-80GB", "A100 80 GB", "a100sxm4-80gb", "A100-80G"),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", "A100 40GB", "a100_sxm_40gb"),
    "a100-pcie-40gb": ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40 GB"),
    "a100-pcie-80gb": ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
    "h100-80gb": ("NVIDIA H100 80GB HBM3", "H100", "h100-sxm", "H100 SXM5", "H100SXM5", "H100-80GB-SXM5"),
    "h100-pcie-80gb": ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
    "h100-nvl-94gb": ("NVIDIA H100 NVL", "H100 NVL 94GB PCIe"),
    "h200-141gb": ("NVIDIA H200", "H200 SXM 141GB HBM3e"),
    "b200-180gb": ("NVIDIA B200", "b200"),
    "gh200-96gb": ("NVIDIA GH200 480GB", "GH200", "gh200 96gb"),
    "l4-24gb": ("NVIDIA L4", "l4"),
    "l40-48gb": ("NVIDIA L40",),
    "l40s-48gb": ("NVIDIA L40S", "l40s"),
    "a10-24gb": ("NVIDIA A10", "a10"),
    "a10g-24gb": ("NVIDIA A10G", "A10G 24GB"),
    "a40-48gb": ("NVIDIA A40",),
    "rtx-a6000-48gb": ("NVIDIA RTX A6000", "A6000", "rtx-a6000"),
    "rtx-6000-ada-48gb": ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", "RTX6000Ada", "6000 Ada"),
    "quadro-rtx-6000-24gb": ("Quadro RTX 6000",),
    "rtx-pro-6000-96gb": (
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "RTX PRO 6000",
    ),
    "rtx-3090-24gb": ("NVIDIA GeForce RTX 3090", "3090"),
    "rtx-3090-ti-24gb": ("NVIDIA GeForce RTX 3090 Ti", "3090ti"),
    "rtx-5090-32gb": ("NVIDIA GeForce RTX 5090", "RTX５０９０"),
    "v100-16gb": ("Tesla V100-SXM2-16GB",),
    "v100-32gb": ("Tesla V100-SXM3-32GB", "V100 32GB"),
    "v100-pcie-16gb": ("Tesla V100-PCIE-16GB",),
    "t4-16gb": ("Tesla T4", "NVIDIA T4"),
    "mi300x-192gb": ("AMD Instinct MI300X", "MI300X OAM", "mi300x"),
}
# As clouds, schedulers and market places list them.
LISTED = {
    "h100-80gb": (
        "NVIDIA-H100-80GB-HBM3",
        "nvidia-h100-80gb",
        "H100_SXM",
        "h100_sxm5",
        "H100-SXM5-80GB",
        "HGX H100",
        "H100 80GB SXM",
        "nvidia-h100-mega-80gb",
        "H100 80G",
    ),
    "h100-pcie-80gb": (
        "H100_PCIE",
        "NVIDIA H100 PCIe 80GB",
        "h100-pcie",
    ),
    "h100-nvl-94gb": (
        "H100_NVL",
        "H100NVL",
        "H100 NVL 94GB",
    ),
    "h200-141gb": (
        "H200_SXM",
        "HGX H200",
        "nvidia-h200-141gb",
        "H200 141GB",
    ),
    "h200-nvl-141gb": (
        "NVIDIA H200 NVL",
        "H200_NVL",
    ),
    "b200-180gb": (
        "B200 SXM",
        "nvidia-b200",
        "HGX B200",
        "B200 180GB",
    ),
    "gh200-96gb": (
        "NVIDIA GH200",
        "Grace Hopper GH200",
        "gh200 96 GB",
    ),
    "a100-40gb": (
        "a100-sxm4-40gb",
        "NVIDIA-A100-SXM4-40GB",
        "A100 SXM4 40 GB",
    ),
    "a100-80gb": (
        "nvidia-a100-80gb",
        "A100_SXM_80GB",
        "A100 SXM 80GB",
        "a100-sxm4-80gb",
        "NVIDIA-A100-SXM4-80GB",
    ),
    "a100-pcie-80gb": (
        "A100_PCIE_80GB",
        "NVIDIA-A100-80GB-PCIe",
        "A100 PCIe 80G",
    ),
    "a100-pcie-40gb": (
        "A100-PCIE-40GB",
        "A100 PCIe 40GB",
    ),
    "l4-24gb": (
        "nvidia-l4",
        "L4 24GB",
        "NVIDIA L4 24 GB",
    ),
    "l40-48gb": (
        "L40 48GB",
        "nvidia-l40",
    ),
    "l40s-48gb": (
        "NVIDIA L40S 48GB",
        "L40S-48GB",
        "nvidia-l40s",
    ),
    "a10-24gb": (
        "A10 24GB PCIe",
        "nvidia-a10",
    ),
    "a10g-24gb": (
        "nvidia-a10g",
        "NVIDIA A10G 24GB",
    ),
    "a40-48gb": (
        "A40 48GB",
        "A40 PCIe",
        "a40",
    ),
    "rtx-a6000-48gb": (
        "RTXA6000",
        "RTX_A6000",
        "A6000 48GB",
        "RTX A6000",
    ),
    "rtx-6000-ada-48gb": (
        "RTX_6000Ada",
        "RTX 6000 ADA 48GB",
        "NVIDIA RTX 6000 Ada",
        "RTX6000-Ada",
    ),
    "rtx-pro-6000-96gb": (
        "RTX_PRO_6000",
        "RTX PRO 6000 Blackwell",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "RTX PRO 6000 96GB",
        "RTXPRO6000",
        "RTX_PRO_6000_WS",
        "RTX PRO 6000 SE",
    ),
    "rtx-3090-24gb": (
        "RTX_3090",
        "GeForce RTX 3090",
        "RTX3090 24GB",
    ),
    "rtx-4090-24gb": (
        "GeForce RTX 4090",
        "NVIDIA-GeForce-RTX-4090",
        "RTX4090-24GB",
    ),
    "rtx-5090-32gb": (
        "RTX_5090",
        "RTX5090",
        "5090",
        "GeForce RTX 5090 32GB",
    ),
    "v100-16gb": (
        "V100 16GB",
        "NVIDIA Tesla V100-SXM2-16GB",
    ),
    "v100-32gb": (
        "Tesla V100-SXM2-32GB",
        "V100_32GB",
    ),
    "v100-pcie-32gb": ("Tesla V100-PCIE-32GB",),
    "t4-16gb": (
        "nvidia-tesla-t4",
        "T4 16GB",
        "Tesla-T4",
        "t4",
    ),
    "mi300x-192gb": (
        "AMD MI300X",
        "Instinct MI300X",
        "amd-instinct-mi300x",
        "MI300X 192GB",
    ),
    "mi250x-128gb": ("AMD Instinct MI250X",),
    "rtx-a5000-24gb": (
        "RTX_A5000",
        "NVIDIA RTX A5000",
    ),
    "rtx-a4000-16gb": (
        "RTX A4000",
        "A4000",
    ),
    "rtx-4080-super-16gb": (
        "RTX 4080 SUPER",
        "RTX_4080S",
    ),
    "a30-24gb": (
        "NVIDIA A30",
        "A30",
    ),
    "p100-16gb": ("Tesla P100-SXM2-16GB",),
}
# Name and MiB as drivers report them.
REPORTED = [
    ("NVIDIA H100 80GB HBM3", 81_559, "h100-80gb"),
    ("NVIDIA A100-SXM4-80GB", 81_920, "a100-80gb"),
    ("A100", 81_559, "a100-80gb"),
    ("A100", 40_536, "a100-40gb"),
    ("A100 PCIe", 40_960, "a100-pcie-40gb"),
    ("V100", 16_160, "v100-16gb"),
    ("H100", 95_830, "h100-nvl-94gb"),
    ("NVIDIA GeForce RTX 4090", 24_564, "rtx-4090-24gb"),
    ("NVIDIA GeForce RTX 3080", 12_288, "rtx-3080-12gb"),
    ("RTX 6000", 49_140, "rtx-6000-ada-48gb"),
    ("NVIDIA L40S", 46_068, "l40s-48gb"),
    ("NVIDIA L4", 23_034, "l4-24gb"),
    ("Tesla T4", 15_109, "t4-16gb"),
    ("NVIDIA B200", 183_359, "b200-180gb"),
    ("NVIDIA H200", 143_771, "h200-141gb"),
    ("NVIDIA GH200 480GB", 97_871, "gh200-96gb"),
    ("NVIDIA GeForce RTX 5090", 32_607, "rtx-5090-32gb"),
    ("AMD Instinct MI300X", 196_592, "mi300x-192gb"),
]


def refusal(name: str, memory_mib: int = 0) -> Reason:
    with pytest.raises(Refused) as refused:
        resolve(name, memory_mib)
    return refused.value.reason


@pytest.mark.parametrize(
    ("slug", "name"),
    [(slug, name) for table in (SPELLINGS, LISTED) for slug, names in table.items() for name in names],
)
def test_a_spelling_comes_to_its_model(slug: str, name: str) -> None:
    assert resolve(name).slug == slug


@pytest.mark.parametrize("name", ["V100-SXM2", "nvidia-tesla-v100", "A100_PCIE", "A100-SXM4"])
def test_a_name_that_leaves_the_memory_open_is_ambiguous(name: str) -> None:
    assert refusal(name).code == "ambiguous_gpu_model"


@pytest.mark.parametrize(("name", "memory_mib", "slug"), REPORTED)
def test_reported_memory_is_compared_as_people_mean_sizes(name: str, memory_mib: int, slug: str) -> None:
    assert resolve(name, memory_mib).slug == slug


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("A100", {"a100-40gb", "a100-80gb"}),
        ("A100 PCIe", {"a100-pcie-40gb", "a100-pcie-80gb"}),
        ("NVIDIA V100", {"v100-16gb", "v100-32gb"}),
        ("RTX 6000", {"quadro-rtx-6000-24gb", "rtx-6000-ada-48gb"}),
    ],
)
def test_a_name_of_several_models_is_ambiguous_and_they_are_listed(name: str, choices: set[str]) -> None:
    reason = refusal(name)
    assert (reason.code, reason.field, reason.seen) == ("ambiguous_gpu_model", "gpu", name)
    assert set(reason.choices) == choices
    assert all(choice in reason.message for choice in choices)


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("H10", "h100-80gb"),
        ("RTX 4900", "rtx-4090-24gb"),
        ("h100-80g b", "h100-80gb"),
        ("RTX 4090 Laptop GPU", "rtx-4090-24gb"),
        ("A100 64GB", "a100-80gb"),
        ("RTX 4090 48GB", "rtx-4090-24gb"),
        ("L4 SXM", "l4-24gb"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "a100-80gb"),
    ],
)
def test_an_unknown_name_lists_the_close_ones(name: str, close: str) -> None:
    reason = refusal(name)
    assert (reason.code, reason.seen) == ("unknown_gpu_model", name)
    assert close in reason.choices
    assert len(reason.choices) <= CHOICES_MAX


@pytest.mark.parametrize(("name", "memory_mib"), [("NVIDIA A100-SXM4-80GB", 40_960), ("RTX 4090", 16_376), ("T4", 1)])
def test_a_card_with_another_memory_than_its_model_has_is_not_that_model(name: str, memory_mib: int) -> None:
    reason = refusal(name, memory_mib)
    assert reason.code == "unknown_gpu_model"
    assert reason.choices


def test_what_resembles_nothing_is_refused_without_choices() -> None:
    for name in ("", "    ", "quantum-abacus", "🎉"):
        assert refusal(name).choices == ()


def test_a_name_beyond_the_bound_is_refused_at_once_and_not_repeated_whole() -> None:
    reason = refusal("rtx4090 " * 10_000)
    assert reason.code == "unknown_gpu_model"
    assert len(reason.seen) <= GPU_NAME_CHARS_MAX


def test_slugs_are_ids_and_state_their_size() -> None:
    assert len(BY_SLUG) == len(CATALOGUE)
    for model in CATALOGUE:
        assert is_id(model.slug)
        assert model.slug.endswith(f"-{model.memory_gib}gb")


@given(MODELS)
def test_a_slug_is_its_own_spelling(model: GpuModel) -> None:
    assert resolve(model.slug) is model
    assert resolve(model.slug, model.memory_mib) is model


@given(model=MODELS, separator=st.sampled_from(["-", "_", " ", "  ", " - ", "/"]), upper=st.booleans())
def test_case_separators_and_vendors_make_no_difference(model: GpuModel, separator: str, upper: bool) -> None:
    name = model.slug.replace("-", separator)
    assert resolve(f"  NVIDIA {name.upper() if upper else name}\t") is model


@given(model=MODELS, percent=st.integers(0, 200))
def test_a_reported_size_counts_for_its_nominal_one_only_near_it(model: GpuModel, percent: int) -> None:
    memory_mib = max(1, model.memory_mib * percent // 100)
    if 92 <= percent <= 102:
        assert resolve(model.slug, memory_mib) is model
    elif percent < 90 or percent > 103:
        assert refusal(model.slug, memory_mib).code == "unknown_gpu_model"


@given(name=st.text(max_size=120) | st.text(alphabet=string.ascii_lowercase + string.digits + " -_", max_size=40))
def test_any_text_is_a_model_or_a_bounded_refusal(name: str) -> None:
    try:
        assert resolve(name) in CATALOGUE
        return
    except Refused as refused:
        reason = refused.reason
    assert reason.code in {"unknown_gpu_model", "ambiguous_gpu_model"}
    assert len(reason.choices) <= CHOICES_MAX
    assert set(reason.choices) <= BY_SLUG.keys()
    assert len(reason.message) <= 500
