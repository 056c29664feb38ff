"""Tasks: their losses, their figures, and which network is the better one."""

import pytest
import torch
from torch.nn import functional

from pdecnn.data.patches import with_test_noise
from pdecnn.errors import ConfigError
from pdecnn.learning.image_quality import psnr, ssim
from pdecnn.learning.tasks import CLASSIFICATION, Denoising, TaskConfig, make_task
from pdecnn.learning.training_config import ObjectiveConfig
from pdecnn.networks import create_model
from tests.unit.data.test_patches import make_pictures


def test_psnr_is_that_of_the_mean_squared_error():
    clean = torch.zeros(1, 4, 4)
    assert psnr(clean + 0.1, clean) == pytest.approx(20)
    assert psnr(clean, clean) == 100


def test_ssim_is_scikit_images():
    metrics = pytest.importorskip("skimage.metrics")
    generator = torch.Generator().manual_seed(0)
    clean = torch.rand(1, 20, 17, generator=generator)
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=generator)
    expected = metrics.structural_similarity(
        *(image[0].double().numpy() for image in (noisy, clean)),
        data_range=1,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        full=True,
    )[1][5:-5, 5:-5].mean()
    assert ssim(noisy, clean) == pytest.approx(expected, abs=1e-6)
    assert ssim(clean, clean) == pytest.approx(1)
    assert ssim(clean[:, :10], clean[:, :10]) is None
    assert ssim(torch.rand(1, 12, 12, 12), torch.rand(1, 12, 12, 12)) < 0.5


def test_losses_of_regression():
    outputs, targets = torch.randn(2, 1, 3, 3), torch.randn(2, 1, 3, 3)
    config = ObjectiveConfig()
    squared = Denoising("squared", 25).losses(config, outputs, targets).mean()
    assert torch.allclose(squared, functional.mse_loss(outputs, targets))
    charbonnier = Denoising("charbonnier", 25).losses(config, outputs, targets).mean()
    assert torch.allclose(charbonnier, (outputs - targets).abs().mean(), atol=1e-3)


def test_a_denoiser_is_measured_on_clipped_outputs_of_each_image():
    pictures = make_pictures()
    network = create_model("parabolic_denoising", channels=(4, 4), num_steps=1)
    with torch.no_grad():  # the closing says: no noise
        network.classifier.convolution.stencil.zero_()
    task = Denoising("squared", 25)
    how = {"batch_size": 1, "precision": "float32", "poll": lambda: None, "quick": lambda: None}
    found = task.evaluate(network, pictures, **how)
    assert [row["image"] for row in found.per_image] == ["a.png", "b.png", "c.png"]
    clean = [network.preprocess(pictures.picture(k)[None])[0] for k in range(3)]
    noisy = with_test_noise(clean, 25)
    wanted = [psnr(image.clamp(0, 1), one) for image, one in zip(noisy, clean, strict=True)]
    assert [row["psnr"] for row in found.per_image] == pytest.approx(wanted, rel=1e-5)
    assert found.score == found.psnr == pytest.approx(20.5, abs=1)
    assert found.psnr == pytest.approx(sum(r["psnr"] for r in found.per_image) / 3)
    assert set(found.to_dict()) == {"psnr", "ssim", "loss", "num_images", "per_image"}
    louder = Denoising("squared", 50).evaluate(network, pictures, **how)
    assert louder.psnr < found.psnr - 4
    shown = task.show(network, pictures, "float32")
    assert {name: tuple(tensor.shape) for name, tensor in shown.items()} == dict.fromkeys(
        ("clean", "noisy", "denoised"), (3, 1, 8, 8)
    )


def test_tasks_by_config():
    assert make_task(TaskConfig(), noise=None) is CLASSIFICATION
    assert make_task(TaskConfig(name="regression"), noise=(5, 55)) == Denoising("squared", 30)
    with pytest.raises(ConfigError, match=r"set data\.noise"):
        make_task(TaskConfig(name="regression"), noise=None)
    with pytest.raises(ConfigError, match=r"task\.loss is for regression"):
        TaskConfig(loss="squared")
    with pytest.raises(ConfigError, match="task"):
        TaskConfig(name="clustering")


def test_scores_are_read_as_people_do():
    assert CLASSIFICATION.format(0.98765) == "98.8%"
    assert Denoising("squared", 25).format(30.123) == "30.12"
