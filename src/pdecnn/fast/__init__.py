"""How fast networks run, never what they compute: compiled steps, fused kernels, layouts."""

from pdecnn.fast.acceleration import accelerate as accelerate
