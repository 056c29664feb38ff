r"""
Energy: what a wave network keeps
=================================

The second-order network :math:`\partial_t^2 Y = -K^\top \sigma(K Y)` conserves
:math:`\tfrac12 |\dot Y|^2 + \sum \Phi(K Y)` with :math:`\Phi' = \sigma`. The paper prints
:math:`\tfrac12 (K Y)^\top \sigma(K Y)` in place of :math:`\Phi`, which drifts for tanh. Heat fades.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from pdecnn import Block, SymmetricLayer
from pdecnn.diagnostics import energy_curves

FINAL_TIME = 8.0
torch.manual_seed(0)
layer = SymmetricLayer(3, activation="tanh", normalization="none").double()
features = 2 * torch.randn(1, 3, 12, 12, dtype=torch.float64)


def curves(integrator: str, num_steps: int):
    block = Block([layer], integrator, step_size=FINAL_TIME / num_steps, num_steps=num_steps)
    return np.linspace(0, FINAL_TIME, num_steps + 1), energy_curves(block, features)


times, wave = curves("leapfrog_second_order", 400)
_, heat = curves("forward_euler", 400)
start = wave.centred[0, 0]

# %%
# Leapfrog errs by :math:`O(\delta_t^2)` if velocities are taken at the time of the positions, and
# by :math:`O(\delta_t)` at the states as they are stored.
numbers, errors = [50, 100, 200, 400], {"centred": [], "raw": []}
for number in numbers:
    found = curves("leapfrog_second_order", number)[1]
    for name, values in errors.items():
        energy = getattr(found, name)[:, 0]
        values.append(((energy - energy[0]).abs().max() / start).item())
slopes = {name: -np.polyfit(np.log(numbers), np.log(v), 1)[0] for name, v in errors.items()}
print(f"conserved energy: largest relative change {errors['centred'][-1]:.1e}")
printed = wave.printed_centred[:, 0]
print(f"printed energy: largest relative change {(printed / printed[0] - 1).abs().max():.2f}")
print(f"slopes in the step size: centred {slopes['centred']:.2f}, raw {slopes['raw']:.2f}")
print(f"parabolic energy left {heat.raw[-1, 0] / heat.raw[0, 0]:.1e}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(times, wave.centred[:, 0] / start, label="wave, conserved")
left.plot(times, printed / printed[0], label="wave, as printed", linestyle="--")
left.plot(times, heat.raw[:, 0] / heat.raw[0, 0], label="heat")
left.set(xlabel="time", ylabel="energy / initial energy", ylim=(0, None))
for name, values in errors.items():
    right.loglog(FINAL_TIME / np.array(numbers), values, "o-", label=f"{name}: {slopes[name]:.1f}")
right.set(xlabel="step size", ylabel="largest relative change")
right.minorticks_off()
right.set_xticks([FINAL_TIME / number for number in numbers], ["0.16", "0.08", "0.04", "0.02"])
left.legend(), right.legend(title="slope")
plt.show()
