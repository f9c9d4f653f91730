"""Reinforcement learning on Gymnasium's environments."""

from towerpack._core.extras import explain_missing

with explain_missing("towerpack.rl"):
    from towerpack.rl._envs import Step as Step
    from towerpack.rl._envs import VectorEnv as VectorEnv
    from towerpack.rl._envs import make_envs as make_envs
    from towerpack.rl._episodes import episode_frames as episode_frames
    from towerpack.rl._episodes import save_episode as save_episode
    from towerpack.rl._replay import ReplayMemory as ReplayMemory
    from towerpack.rl._replay import Sample as Sample
    from towerpack.rl._wrappers import Atari as Atari
    from towerpack.rl._wrappers import FireReset as FireReset
    from towerpack.rl._wrappers import LifeLoss as LifeLoss
