"""Where the replicas of a step run, and the processes that they run in."""
