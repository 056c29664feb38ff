"""Variants of the kernels change what they say and leave nothing behind."""

from argparse import Namespace

import pytest
import torch

from benchmarks.kernel_variants import (
    BASELINE,
    CHOSEN,
    Blocks,
    Variant,
    chosen_variants,
    difference,
    kernels,
    slim,
    used,
)
from pdecnn.fast import fused


def switches():
    return fused.BESIDE, fused.LATE, fused.LAZY, kernels.CHAINED


def test_kernels_are_as_before_after_a_variant_that_failed():
    before = kernels._BLOCKS, kernels._BLOCKS_OF_FEW
    variant = Variant(beside=True, late=True, lazy=True, chained=True, few=slim(), many=slim())

    def fail():
        assert all(switches())
        assert kernels._BLOCKS["stencil_gradient"][32].num_stages == 2
        assert kernels._BLOCKS["activate"] == before[0]["activate"]
        raise RuntimeError("no graph")

    with pytest.raises(RuntimeError, match="no graph"), variant.applied():
        fail()
    assert not any(switches())
    assert before == (kernels._BLOCKS, kernels._BLOCKS_OF_FEW)
    assert before[0]["stencil_gradient"][32].num_stages == 3


@pytest.mark.parametrize("images", [1, 1000])
def test_blocks_that_are_timed_hold_for_any_number_of_images(images):
    wanted, features = Blocks(32, 64, 4, 1), torch.empty(images, 64, 16, 16, device="meta")
    with used("add_adjoint", 64, wanted):
        assert kernels.choose_blocks("add_adjoint", features) == wanted
        assert kernels.choose_blocks("activate", features) != wanted


def test_weights_with_other_bits_are_told_from_equal_ones_and_from_no_numbers():
    weights = [torch.tensor([3.0, 4.0]), torch.tensor([0.0])]
    assert difference([w.clone() for w in weights], weights) == 0
    other = torch.tensor([3.0, 4.5]), torch.tensor([0.0])
    assert difference(list(other), weights) == pytest.approx(0.1)
    lost = difference([torch.full((2,), torch.nan), weights[1]], weights)
    assert lost != lost


def test_a_variant_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no variant 'besides'; there are as it is, beside,"):
        chosen_variants(Namespace(output=tmp_path, only=["besides"]))
    chosen = chosen_variants(Namespace(output=tmp_path, only=["lazy"]))
    assert list(chosen) == [BASELINE, "lazy"]
    (tmp_path / "blocks.json").write_text(
        '[{"kernel": "activate", "padded": 32, "few": true, "blocks": [64, 32, 4, 1]}]'
    )
    assert CHOSEN in chosen_variants(Namespace(output=tmp_path, only=None))
