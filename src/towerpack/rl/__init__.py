"""Reinforcement learning: environments, experience, agents as trainers on the library's loop."""

from towerpack._core.extras import require

require("tensorflow", extra="rl", needed_for="towerpack.rl")
require("gymnasium", extra="rl", needed_for="towerpack.rl")

from towerpack.rl import math as math
from towerpack.rl._agent import Agent as Agent
from towerpack.rl._atari import Atari as Atari
from towerpack.rl._envs import Step as Step
from towerpack.rl._envs import VectorEnv as VectorEnv
from towerpack.rl._envs import make_envs as make_envs
from towerpack.rl._episodes import save_episode as save_episode
from towerpack.rl._evaluator import Evaluator as Evaluator
from towerpack.rl._experience import Experience as Experience
from towerpack.rl._experience import ShowEpisodes as ShowEpisodes
from towerpack.rl._networks import MLP as MLP
from towerpack.rl._networks import nature_cnn as nature_cnn
from towerpack.rl._replay import ReplayMemory as ReplayMemory
from towerpack.rl._replay import Sample as Sample
from towerpack.rl.a2c import A2C as A2C
from towerpack.rl.a2c import A2CConfig as A2CConfig
from towerpack.rl.dqn import DQN as DQN
from towerpack.rl.dqn import DQNConfig as DQNConfig
from towerpack.rl.ppo import PPO as PPO
from towerpack.rl.ppo import ActorCritic as ActorCritic
from towerpack.rl.ppo import PPOConfig as PPOConfig
