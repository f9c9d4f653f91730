"""Draw docs/images/spikes.svg: costs of the tutorial about bad rows.

python spikes.py POISONED/step_costs.f32 REPAIRED/step_costs.f32 spikes.svg
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
for file, label in zip(
    sys.argv[1:3], ("with 20 bad rows", "rewound to step 46, without them"), strict=True
):
    costs = np.fromfile(file, "<f4")
    axes.plot(np.arange(1, len(costs) + 1), costs, label=label, linewidth=0.9)
axes.set(yscale="log", xlabel="step", ylabel="cost")
axes.legend()
figure.savefig(sys.argv[3], metadata={"Date": None})
