"""Reinforcement learning: environments, replay memory, and agents such as PPO and DQN."""

from towerpack._core.extras import require

require("tensorflow", extra="rl", needed_for="towerpack.rl")
require("gymnasium", extra="rl", needed_for="towerpack.rl")

from towerpack.rl import math as math
from towerpack.rl._agent import Agent
from towerpack.rl._atari import Atari
from towerpack.rl._envs import Step, VectorEnv, make_envs
from towerpack.rl._episodes import save_episode
from towerpack.rl._evaluator import Evaluator
from towerpack.rl._experience import Experience, ShowEpisodes
from towerpack.rl._networks import MLP, nature_cnn
from towerpack.rl._replay import ReplayMemory, Sample
from towerpack.rl.a2c import A2C, A2CConfig
from towerpack.rl.dqn import DQN, DQNConfig
from towerpack.rl.ppo import PPO, ActorCritic, PPOConfig

# Without `math`, which would replace Python's module in a star import.
__all__ = [
    "A2C", "DQN", "MLP", "PPO", "A2CConfig", "ActorCritic", "Agent", "Atari", "DQNConfig",
    "Evaluator", "Experience", "PPOConfig", "ReplayMemory", "Sample", "ShowEpisodes", "Step",
    "VectorEnv", "make_envs", "nature_cnn", "save_episode"
]  # fmt: skip
