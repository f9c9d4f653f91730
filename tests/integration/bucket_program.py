"""`resumable_program.py` with frequent uploads, for `test_bucket.py`.

python bucket_program.py URL OUTPUT.npz
"""

from __future__ import annotations

import sys

from resumable_program import main

from towerpack.checkpoint import remote_run

remote_run.PAUSE_S = 0.05

if __name__ == "__main__":
    main(*sys.argv[1:])
