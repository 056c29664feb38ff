"""Print a digest of a network after a few captured steps; run by test_repeated_steps."""

import hashlib
import sys

import torch

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet
from pdecnn.learning import Trainer, TrainingConfig
from pdecnn.networks.registry import create_model


def main(model: str, size: int) -> None:
    torch.manual_seed(0)
    network = create_model(model).cuda()
    generator = torch.Generator().manual_seed(0)
    images = ImageSet(
        images=torch.randint(0, 256, (500, 3, size, size), generator=generator, dtype=torch.uint8),
        labels=torch.randint(0, 10, (500,), generator=generator),
        class_names=tuple("abcdefghij"),
    )
    config = TrainingConfig(
        batch_size=125, precision="bfloat16", learning_rates=(0.1,), phases=(1,), epochs=1
    )
    trainer = Trainer(
        network,
        config,
        train=images,
        validation=images.subset(torch.arange(10)),
        augmentation=Augmentation(),
        seed=0,
    )
    trainer.begin_epoch()
    for _ in range(4):
        trainer.step()
    trainer.synchronize()
    assert trainer.captured
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
