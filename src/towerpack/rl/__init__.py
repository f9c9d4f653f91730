"""Reinforcement learning: environments, experience, agents as trainers on the library's loop."""

from towerpack._core.extras import require

require("tensorflow", extra="rl", needed_for="towerpack.rl")
require("gymnasium", extra="rl", needed_for="towerpack.rl")

from towerpack.rl import math as math
